"""Standings as Markdown and as JSON values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from cachelb_lab.sim.league.figures import COMPARED, SLO
from cachelb_lab.sim.league.standings import GROUPS, NEAR, Ratio, Score, Standings

SCHEMA = 2
"""Version of the JSON document; a new key keeps it, a changed or removed one raises it."""

FIRST = COMPARED[0]
"""The figure that tables of groups show."""

HEADS = (
    *("policy", *(figure.title for figure in COMPARED)),
    *("within 3 %", "good", "hits", "preempted", "unserved"),
)
"""Columns of the table of all cells."""

_LARGE = 100.0
_PLACE = ("trace", "fleet", "load", "realism", "seed")


def ratio_text(ratio: Ratio | None) -> str:
    """Write the geometric mean of a ratio, and its worst cell in brackets; a dash where there is none.

    Example:
        >>> from cachelb_lab.sim.league import Ratio
        >>> ratio_text(Ratio(1.234, 250.0, {}, 3)), ratio_text(None)
        ('1.23 (250)', '-')
    """
    return "-" if ratio is None else f"{_number(ratio.mean)} ({_number(ratio.worst)})"


def policy_rows(standings: Standings) -> Iterator[list[str]]:
    """Write the rows of the table of all cells; a star stands where another policy served more."""
    for score in standings.scores():
        shares = (score.near, score.good_share, score.hit_rate)
        yield [
            *(score.policy, *(ratio_text(score.figures[figure.name]) for figure in COMPARED)),
            *("-" if share is None else f"{share:.0%}" for share in shares),
            *(f"{score.preempted:.1%}", f"{score.unserved:,}{'*' if score.behind else ''}"),
        ]


def legend(standings: Standings) -> list[str]:
    """Explain the tables in lines of text."""
    floors = ", ".join(f"{figure.title} {figure.floor * 1e3:g} ms" for figure in COMPARED if not figure.of)
    lines = [
        f"{len(standings)} cells. Ratios to the best policy of each cell: geometric mean (worst cell); 1 is best.",
        f"Floors below which values count as equal: {floors}.",
        "balanced: geometric mean of the ratios of TTFT p50, mean and p99 and of E2E; session: of closed loops alone.",
        (
            f"within 3 %: cells whose mean TTFT is at most {NEAR} of the best; good: TTFT <= {SLO.ttft_s:g} s and "
            f"TPOT <= {SLO.tpot_s * 1e3:g} ms; hits: prompt tokens that were cached."
        ),
        "preempted: above the least of the cell, by requests; unserved: requests not served whole.",
    ]
    if any(score.behind for score in standings.scores()):
        lines.append("*: served fewer requests than another policy in some cell, which is the reference there.")
    return lines


def markdown(standings: Standings) -> str:
    """Write standings as Markdown.

    Args:
        standings: The standings.

    Returns:
        A table over all cells, one of the mean TTFT for each way to group them that has several groups, and one of
        the worst cells.

    Example:
        >>> from cachelb_lab.sim.league import Row, Standings
        >>> rows = [Row("c", {"load": 0.5}, policy, {"ttft_mean_s": ttft}) for policy, ttft in [("a", 0.2), ("b", 0.5)]]
        >>> print(markdown(Standings(rows)).splitlines()[-1])
        | b | 2.50 | - | - | 0.5 | - | - |
    """
    lines = [*(f"{line}  " for line in legend(standings)), ""]
    lines += _table(HEADS, list(policy_rows(standings)))
    for by, groups, table in group_tables(standings):
        lines += ["", f"{FIRST.title} by {by}", "", *_table(["policy", *groups], table)]
    worst = [[score.policy, *_place(score.figures[FIRST.name])] for score in standings.scores()]
    lines += ["", f"Worst cell of {FIRST.title}", "", *_table(["policy", "ratio", *_PLACE], worst)]
    return "\n".join(lines) + "\n"


def group_tables(standings: Standings) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Yield the tables of groups, for each grouping that has several groups.

    Each is the grouping, the groups, and by policy its name and the mean TTFT in each group.
    """
    for by in GROUPS:
        groups = standings.groups(by)
        if len(groups) > 1:
            found = [{score.policy: score for score in standings.scores(cells)} for cells in groups.values()]
            table = [
                [policy, *(ratio_text(one[policy].figures[FIRST.name]) if policy in one else "-" for one in found)]
                for policy in (score.policy for score in standings.scores())
            ]
            yield by, [str(group) for group in groups], table


def as_dict(standings: Standings) -> dict[str, Any]:
    """Return standings as JSON values.

    Args:
        standings: The standings.

    Returns:
        Scores over all cells and over each group, and all figures of all runs; None stands for an infinite ratio.

    Example:
        >>> from cachelb_lab.sim.league import Row, Standings
        >>> as_dict(Standings([Row("c", {"load": 0.5}, "a", {"ttft_mean_s": 0.2})]))["runs"]
        [{'load': 0.5, 'policy': 'a', 'figures': {'ttft_mean_s': 0.2}}]
    """
    return {
        "schema": SCHEMA,
        "cells": len(standings),
        "floors": {figure.name: figure.floor for figure in COMPARED if not figure.of},
        "scores": [_score(score) for score in standings.scores()],
        "groups": {
            by: [
                {by: group, "scores": [_score(score) for score in standings.scores(cells)]}
                for group, cells in standings.groups(by).items()
            ]
            for by in GROUPS
        },
        "runs": [{**row.facts, "policy": row.policy, "figures": dict(row.figures)} for row in standings.rows],
    }


def _score(score: Score) -> dict[str, Any]:
    table = asdict(score)
    for ratio in table["figures"].values():
        if ratio is not None:
            ratio |= {key: ratio[key] if math.isfinite(ratio[key]) else None for key in ("mean", "worst")}
    return table


def _place(ratio: Ratio | None) -> list[str]:
    """Return the texts of a worst cell."""
    if ratio is None:
        return ["-"] * (1 + len(_PLACE))
    return [_number(ratio.worst), *(str(ratio.worst_cell.get(key, "-")) for key in _PLACE)]


def _number(value: float) -> str:
    return f"{value:.2f}" if value < _LARGE else f"{value:,.0f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
