"""Running a league: capacities first, then every policy in every cell, except stored runs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import chain, product
from typing import TYPE_CHECKING, Any

import numpy as np

from cachelb.common.arguments import listed
from cachelb_lab.sim.contender import Contender
from cachelb_lab.sim.experiments.runs import Batch, Requests
from cachelb_lab.sim.figures.lru_bound import PoolProfile
from cachelb_lab.sim.league.capacity import capacity, capacity_key
from cachelb_lab.sim.league.cells import FIRST_SEED, Cell, League, digest
from cachelb_lab.sim.league.figures import SLO, figures_of
from cachelb_lab.sim.league.realism import Realism
from cachelb_lab.sim.league.standings import Row, Standings
from cachelb_lab.sim.league.store import Store
from cachelb_lab.sim.league.traces import fingerprint

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from cachelb_lab.sim.fleet import FleetSpec
    from cachelb_lab.sim.workloads import Workload

_MOST_POLICIES = 65_536
_CAPACITY_RUNS = 20
"""Approximate runs of finding a capacity, for progress."""
_OF_CAPACITY = ("trace", "part", "fleet", "model")


def play(
    leagues: League | Sequence[League],
    policies: Sequence[str],
    *,
    store: Store | None = None,
    threads: int = 1,
    progress: Callable[[float], object] | None = None,
) -> Standings:
    """Run every policy in every cell that the store lacks.

    Args:
        leagues: Settings, one or several; cells that several have are run once.
        policies: As `simulate` takes them, options in parentheses: ``prefill-times-batch(crowding=1)+events``.
        store: Runs made so far, to which new ones are added; in memory by default.
        threads: Runs at a time; their number changes no figure and no byte of the store.
        progress: Called now and then with the share of the work that is done.

    Returns:
        The standings of these policies, and of imported runs, over these cells.

    Raises:
        ValueError: A setting is out of range, or a trace does not fit a fleet.
        TypeError: A policy or a generator does not have an option.
        TraceError: A file is malformed.
        OSError: A file cannot be read or written.

    Example:
        >>> from cachelb_lab.sim.league import League, play
        >>> league = League(("chat(count=120)",), ("2xl40s",), loads=(0.7,))
        >>> found = play(league, ["cache-aware", "random"])
        >>> [score.policy for score in found.scores()], found.scores()[0].figures["ttft_mean_s"].mean
        (['cache-aware', 'random'], 1.0)
    """
    given = [leagues] if isinstance(leagues, League) else listed("leagues", leagues)
    cells = tuple(dict.fromkeys(cell for league in given for cell in league.cells()))
    names = tuple(
        dict.fromkeys(str(Contender.parse(policy)) for policy in listed("policies", policies, _MOST_POLICIES))
    )
    if not cells or not names:
        raise ValueError(f"{'leagues' if names else 'policies'} must be at least one")
    for name in names:
        Contender.parse(name).check()
    return Standings(_League(cells, names, Store() if store is None else store, progress).play(threads), names)


def _place(cell: Cell) -> Cell:
    """Return the cell whose capacity another one has: of the first seed, so that it does not depend on the others."""
    realism = Realism("capacity", "", mfu=cell.realism.mfu, all_reduce=cell.realism.all_reduce)
    return replace(cell, load=1.0, realism=realism, seed=FIRST_SEED)


def _source(cell: Cell) -> Hashable:
    """Return the key of a cell's requests."""
    return cell.trace, cell.part, cell.seed


def _read(cell: Cell) -> tuple[Workload, str]:
    """Return a cell's requests at their own speed, and what identifies them."""
    workload = cell.trace.requests(cell.seed, cell.part)
    return workload, fingerprint(workload)


def _shared(cell: Cell) -> tuple[Hashable, Hashable, Hashable]:
    """Return the keys of values that a run shares with others: requests, their profile, requests of the cell."""
    source = _source(cell)
    return source, ("profile", source), ("sped", cell)


class _League(Batch):
    """All the runs of a league, which share requests."""

    def __init__(
        self,
        cells: Sequence[Cell],
        policies: Sequence[str],
        store: Store,
        progress: Callable[[float], object] | None,
    ) -> None:
        self._store = store
        self._places = list(dict.fromkeys(map(_place, cells)))
        self._tasks = list(product(cells, policies))
        self._speeds: dict[Cell, float] = {}
        self._rows: list[Row] = []
        uses = chain(map(_source, self._places), *(_shared(cell) for cell, _ in self._tasks))
        super().__init__(uses, len(self._places) * _CAPACITY_RUNS + len(self._tasks), progress)

    def play(self, threads: int) -> list[Row]:
        """Run missing rows; return all rows."""
        self.each(threads, self._find_capacity, self._places, self._keep_capacity)
        self.each(threads, self._run, self._tasks, self._keep_run)
        facts = {row.cell: row.facts for row in self._rows}
        imported = (row for row in self._store.rows("run") if "source" in row and row["cell"] in facts)
        return self._rows + [Row(row["cell"], facts[row["cell"]], row["policy"], row["figures"]) for row in imported]

    def _keep_capacity(self, place: Cell, found: tuple[str, dict[str, Any]]) -> None:
        self._speeds[place] = found[1]["speed"]
        self._keep("capacity", *found)

    def _keep_run(self, task: tuple[Cell, str], found: tuple[str, dict[str, Any]]) -> None:
        _, row = found
        self._rows.append(Row(row["cell"], task[0].facts(), task[1], row["figures"]))
        self._keep("run", *found)

    def _keep(self, kind: str, key: str, row: dict[str, Any]) -> None:
        if self._store.get(kind, key) is None:
            self._store.add(kind, key, row)

    def _find_capacity(self, place: Cell) -> tuple[str, dict[str, Any]]:
        """Return key and row of a capacity."""
        workload, name = self.take(_source(place), partial(_read, place))
        fleet = place.workers(workload.block_size)
        key = capacity_key(name, fleet)
        known = self._store.get("capacity", key)
        speed = float(known["speed"] if known else capacity(workload, fleet, place.trace.label))
        self.drop(_source(place))
        self.report(_CAPACITY_RUNS)
        facts = {name: fact for name, fact in place.facts().items() if name in _OF_CAPACITY}
        return key, {**facts, "mfu": place.realism.mfu, "speed": speed}

    def _run(self, task: tuple[Cell, str]) -> tuple[str, dict[str, Any]]:
        """Return key and row of a run."""
        cell, policy = task
        workload, name = self.take(_source(cell), partial(_read, cell))
        fleet = cell.workers(workload.block_size)
        speed = cell.load * self._speeds[_place(cell)]
        cell_key = cell.key(name, fleet, speed)
        key = digest([cell_key, policy])
        known = self._store.get("run", key)
        if known:
            self.report(1)
        figures = known["figures"] if known else self._figures(cell, policy, workload, fleet, speed)
        self.drop(*_shared(cell))
        return key, {**cell.facts(), "cell": cell_key, "policy": policy, "figures": figures}

    def _figures(
        self, cell: Cell, policy: str, workload: Workload, fleet: FleetSpec, speed: float
    ) -> dict[str, float | None]:
        """Make a run at `speed` times the rate of the requests."""
        realism, (_, profile, sped) = cell.realism, _shared(cell)
        hits = self.take(profile, lambda: PoolProfile(workload))
        requests: Requests = self.take(sped, lambda: Requests(realism.disturbed(workload.speed_up(speed)), hits))
        result = self.simulate(
            requests,
            fleet,
            policy,
            seed=cell.seed,
            signals=realism.signals,
            gateways=realism.gateways,
            sharing=realism.sharing,
            incidents=realism.incidents_in(float(np.nanmax(workload.arrival_s)) / speed),
        )
        figures = figures_of(requests.measure(result, fleet, SLO))
        # The times of open loops are the clock's, whatever the policy.
        return figures | ({"session_mean_s": None} if cell.trace.loop == "open" else {})
