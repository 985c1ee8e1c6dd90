"""Scores of policies: each figure as a ratio to the best policy of its cell, over all cells or a group of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cachelb.common.table import Table, Tabular, one_of
from cachelb_lab.sim.contender import ORACLE
from cachelb_lab.sim.league.figures import COMPARED, Compared, Figures

NEAR = 1.03
"""Ratio of the mean TTFT up to which a policy counts as near the best."""

GROUPS = ("trace", "fleet", "load", "realism")
"""Groupings of cells."""


@dataclass(frozen=True, slots=True)
class Row:
    """One policy in one cell.

    Attributes:
        cell: Key of the cell.
        facts: Description of the cell; see `Cell.facts`.
        policy: Name of the policy.
        figures: Figures of the run.

    Example:
        >>> Row("c", {"load": 0.5}, "random", {"ttft_mean_s": 1.0}).figures["ttft_mean_s"]
        1.0
    """

    cell: str
    facts: Mapping[str, Any]
    policy: str
    figures: Figures


@dataclass(frozen=True, slots=True)
class Ratio:
    """One figure of one policy, to the best of each cell.

    Attributes:
        mean: Geometric mean over the cells; infinite where the policy lacks the figure in one of them, as it has no
            request served whole.
        worst: The ratio in the cell where it is furthest from the best.
        worst_cell: Description of that cell.
        cells: Number of cells.

    Example:
        >>> Ratio.of({"a": 1.0, "b": 4.0}, {"a": {}, "b": {"load": 0.9}})
        Ratio(mean=2.0, worst=4.0, worst_cell={'load': 0.9}, cells=2)
    """

    mean: float
    worst: float
    worst_cell: Mapping[str, Any]
    cells: int

    @classmethod
    def of(cls, ratios: Mapping[str, float], facts: Mapping[str, Mapping[str, Any]]) -> Ratio | None:
        """Summarise ratios.

        Args:
            ratios: By cell.
            facts: Description of each cell.

        Returns:
            The summary; None of no cell.
        """
        if not ratios:
            return None
        worst = max(ratios, key=lambda cell: ratios[cell])
        mean = math.exp(math.fsum(math.log(ratio) for ratio in ratios.values()) / len(ratios))
        return cls(mean, ratios[worst], facts[worst], len(ratios))


@dataclass(frozen=True, slots=True)
class Score:
    """One policy over some cells.

    Attributes:
        policy: Its name.
        cells: In which it ran.
        figures: By the names of `COMPARED`; None for one that no policy has.
        near: Share of the cells in which its mean TTFT is at most 3 % above the best.
        preempted: Preemptions above the least of any policy in the cell, by requests.
        unserved: Requests that were not served whole.
        behind: Cells in which another policy served more of them.
        hit_rate: Share of the prompt tokens that were cached, mean of the cells.
        of_bound: `hit_rate` over that of one LRU pool of all caches.
        good_share: Share of the requests within the limits of goodput, mean of the cells.

    Example:
        >>> from cachelb_lab.sim.league import Row, Standings
        >>> rows = [Row("c", {}, policy, {"ttft_mean_s": ttft}) for policy, ttft in {"a": 1.0, "b": 2.0}.items()]
        >>> [(score.policy, score.near) for score in Standings(rows).scores()]
        [('a', 1.0), ('b', 0.0)]
    """

    policy: str
    cells: int
    figures: Mapping[str, Ratio | None]
    near: float
    preempted: float
    unserved: int
    behind: int
    hit_rate: float | None
    of_bound: float | None
    good_share: float | None


class Standings(Tabular):
    """Figures of policies in cells, and their scores.

    The best of a cell is, figure by figure, the least among the policies that served most of its requests; one that is
    given exact knowledge (``+oracle``) is a yardstick and never the best.

    Args:
        rows: One per cell and policy; a later one of the same counts.
        policies: In which order; those of the rows, by default and behind.
        reference: Policy to divide by, instead of the best, in every cell that it ran in; only these cells count then.

    Example:
        >>> rows = [Row("c", {}, "a", {"ttft_mean_s": 0.2}), Row("c", {}, "b", {"ttft_mean_s": 0.5})]
        >>> Standings(rows).ratios("b", COMPARED[0])
        {'c': 2.5}
    """

    def __init__(self, rows: Sequence[Row], policies: Sequence[str] = (), reference: str | None = None) -> None:
        self.rows = tuple({(row.cell, row.policy): row for row in rows}.values())
        self.policies = tuple(dict.fromkeys([*policies, *(row.policy for row in self.rows)]))
        self._cells: dict[str, dict[str, Row]] = {}
        for row in self.rows:
            self._cells.setdefault(row.cell, {})[row.policy] = row
        self._reference = reference
        if reference is not None:
            self._cells = {cell: rows for cell, rows in self._cells.items() if reference in rows}
        self._facts = {cell: next(iter(rows.values())).facts for cell, rows in self._cells.items()}
        self._most = {cell: min(map(_unserved, _ranked(rows))) for cell, rows in self._cells.items()}

    def __len__(self) -> int:
        return len(self._cells)

    def table(self, of: str = "runs") -> Table:
        """Return the standings as a table.

        Args:
            of: ``"runs"``, one row per cell and policy with the figures of the run; or ``"scores"``, one row per
                policy, the best mean TTFT first, with its ratios to the best of each cell.

        Returns:
            A column per fact and figure; ratios have their mean and worst.

        Raises:
            ValueError: There is no such table.
        """
        return one_of(of, {"runs": self._run_rows, "scores": self._score_rows})

    def _run_rows(self) -> Iterator[dict[str, Any]]:
        for row in self.rows:
            yield {**row.facts, "policy": row.policy, **row.figures}

    def _score_rows(self) -> Iterator[dict[str, Any]]:
        for score in self.scores():
            row = asdict(score)
            for name, ratio in row.pop("figures").items():
                row |= {f"{name}.{key}": None if ratio is None else ratio[key] for key in ("mean", "worst")}
            yield row

    def over(self, reference: str) -> Standings:
        """Return the same runs, as ratios to one policy.

        Args:
            reference: Which.

        Returns:
            Standings over the cells that it ran in.

        Example:
            >>> rows = [Row("c", {}, name, {"ttft_mean_s": ttft}) for name, ttft in {"a": 0.3, "b": 0.2}.items()]
            >>> Standings(rows).over("a").ratios("b", COMPARED[0])["c"] < 1
            True
        """
        return Standings(self.rows, self.policies, reference)

    def ratios(self, policy: str, figure: Compared, cells: Sequence[str] | None = None) -> dict[str, float]:
        """Return a figure of a policy by the best of each cell.

        Args:
            policy: Which.
            figure: One of `COMPARED`.
            cells: Keys of the cells; all by default.

        Returns:
            By cell, those that the policy ran in and in which the best has the figure. Infinite where it is None;
            without the cells of runs that were made before the figure was kept.
        """
        if figure.of:
            parts = [self.ratios(policy, part, cells) for part in COMPARED if part.name in figure.of]
            shared = [cell for cell in parts[0] if all(cell in part for part in parts)]
            return {cell: math.prod(part[cell] for part in parts) ** (1 / len(parts)) for cell in shared}
        found: dict[str, float] = {}
        for cell in self._cells if cells is None else cells:
            row = self._cells[cell].get(policy)
            best = self._best(cell, figure)
            if row is not None and best is not None and figure.name in row.figures:
                value = row.figures[figure.name]
                found[cell] = math.inf if value is None else max(value, figure.floor) / max(best, figure.floor)
        return found

    def scores(self, cells: Sequence[str] | None = None) -> list[Score]:
        """Return how policies stand.

        Args:
            cells: Keys of the cells; all by default.

        Returns:
            A score per policy that ran in one of them, the best mean TTFT first.
        """
        chosen = list(self._cells) if cells is None else list(cells)
        scores = [
            self._score(policy, [cell for cell in chosen if policy in self._cells[cell]]) for policy in self.policies
        ]
        return sorted((score for score in scores if score.cells), key=_rank)

    def groups(self, by: str) -> dict[Any, list[str]]:
        """Return cells by group.

        Args:
            by: One of `GROUPS`.

        Returns:
            Keys of cells by the fact, in order of first mention.

        Raises:
            ValueError: Cells are not grouped by that.
        """
        if by not in GROUPS:
            raise ValueError(f"by must be one of {', '.join(GROUPS)}, got {by!r}")
        grouped: dict[Any, list[str]] = {}
        for cell, facts in self._facts.items():
            grouped.setdefault(facts.get(by), []).append(cell)
        return grouped

    def _best(self, cell: str, figure: Compared) -> float | None:
        """Return the least value of a figure in a cell."""
        if self._reference is not None:
            return self._cells[cell][self._reference].figures.get(figure.name)
        rows = _ranked(self._cells[cell])
        values = [row.figures.get(figure.name) for row in rows if _unserved(row) == self._most[cell]]
        return min((value for value in values if value is not None), default=None)

    def _score(self, policy: str, cells: Sequence[str]) -> Score:
        rows = [self._cells[cell][policy] for cell in cells]
        ratios = {figure.name: self.ratios(policy, figure, cells) for figure in COMPARED}
        ttft = list(ratios[COMPARED[0].name].values())
        over = offered = 0.0
        for cell, row in zip(cells, rows, strict=True):
            counts = [one.figures.get("preemptions") for one in _ranked(self._cells[cell])]
            own = row.figures.get("preemptions")
            if own is not None:
                over += own - min(count for count in [*counts, own] if count is not None)
                offered += row.figures.get("requests") or 0.0
        return Score(
            policy=policy,
            cells=len(cells),
            figures={name: Ratio.of(found, self._facts) for name, found in ratios.items()},
            near=sum(ratio <= NEAR for ratio in ttft) / len(ttft) if ttft else 0.0,
            preempted=over / offered if offered else 0.0,
            unserved=sum(map(_unserved, rows)),
            behind=sum(_unserved(row) > self._most[cell] for cell, row in zip(cells, rows, strict=True)),
            **{name: _mean(rows, name) for name in ("hit_rate", "of_bound", "good_share")},
        )


def _ranked(rows: Mapping[str, Row]) -> list[Row]:
    """Return the rows of a cell that can be its best; all where each is a yardstick's."""
    return [row for policy, row in rows.items() if not policy.endswith(ORACLE)] or list(rows.values())


def _unserved(row: Row) -> int:
    return int(row.figures.get("unserved") or 0)


def _mean(rows: Sequence[Row], name: str) -> float | None:
    """Return the mean of a figure over the runs that have it."""
    values = [value for row in rows if (value := row.figures.get(name)) is not None]
    return float(np.mean(values)) if values else None


def _rank(score: Score) -> float:
    ratio = score.figures[COMPARED[0].name]
    return math.inf if ratio is None else ratio.mean
