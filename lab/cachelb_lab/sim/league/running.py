"""Running a league: capacities first, then every policy in every cell, except stored runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from cachelb.common.arguments import listed, whole
from cachelb_lab.sim.contender import Contender
from cachelb_lab.sim.figures.lru_bound import PoolProfile
from cachelb_lab.sim.figures.metrics import measure
from cachelb_lab.sim.league.capacity import capacity, capacity_key
from cachelb_lab.sim.league.cells import FIRST_SEED, Cell, League, digest
from cachelb_lab.sim.league.figures import SLO, figures_of
from cachelb_lab.sim.league.realism import Realism
from cachelb_lab.sim.league.standings import Row, Standings
from cachelb_lab.sim.league.store import Store
from cachelb_lab.sim.league.traces import fingerprint
from cachelb_lab.sim.shared import Batch
from cachelb_lab.sim.simulation import prepare, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from cachelb._core import SimWorkload
    from cachelb_lab.sim.fleet import FleetSpec
    from cachelb_lab.sim.result import SimResult
    from cachelb_lab.sim.workloads import Workload

_MOST_THREADS, _MOST_POLICIES = 1_024, 65_536
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
    whole("threads", threads, 1, _MOST_THREADS)
    for name in names:
        Contender.parse(name).check()
    batch = _Batch(cells, names, Store() if store is None else store, progress)
    return Standings(batch.run(threads), names)


def _place(cell: Cell) -> Cell:
    """Return the cell whose capacity another one has: of the first seed, so that it does not depend on the others."""
    realism = Realism("capacity", "", mfu=cell.realism.mfu, all_reduce=cell.realism.all_reduce)
    return replace(cell, load=1.0, realism=realism, seed=FIRST_SEED)


def _source(cell: Cell) -> Hashable:
    """Return the key of a cell's requests."""
    return cell.trace, cell.part, cell.seed


@dataclass(frozen=True, eq=False)
class _Requests:
    """Requests at their own speed."""

    workload: Workload
    fingerprint: str

    @classmethod
    def of(cls, cell: Cell) -> _Requests:
        workload = cell.trace.requests(cell.seed, cell.part)
        return cls(workload, fingerprint(workload))


@dataclass(frozen=True, eq=False)
class _Sped:
    """Requests at the speed of a cell, for all its policies."""

    workload: Workload
    prepared: SimWorkload
    span_s: float

    @classmethod
    def of(cls, workload: Workload, speed: float, cell: Cell) -> _Sped:
        faster = workload.speed_up(speed)
        span_s = float(np.nanmax(faster.arrival_s))
        disturbed = cell.realism.disturbed(faster)
        return cls(disturbed, prepare(disturbed), span_s)


def _used(cell: Cell) -> list[Hashable]:
    """Return the keys of values that a run shares with others."""
    source = _source(cell)
    return [source, ("profile", source), ("sped", cell)]


class _Batch(Batch):
    """All the runs of a league, which share requests."""

    def __init__(
        self,
        cells: Sequence[Cell],
        policies: Sequence[str],
        store: Store,
        progress: Callable[[float], object] | None,
    ) -> None:
        self._cells, self._policies, self._store = cells, policies, store
        self._places = tuple(dict.fromkeys(map(_place, cells)))
        self._capacity: dict[Cell, float] = {}
        self._rows: list[Row] = []
        self._cell_facts: dict[str, dict[str, Any]] = {}
        users: Counter[Hashable] = Counter(map(_source, self._places))
        for cell, _ in product(cells, policies):
            users.update(_used(cell))
        super().__init__(users, len(self._places) * _CAPACITY_RUNS + len(cells) * len(policies), progress)

    def run(self, threads: int) -> list[Row]:
        """Run missing rows; return all rows."""
        self.each(threads, self._find_capacity, self._places, self._keep_capacity)
        tasks = [(cell, policy) for cell in self._cells for policy in self._policies]
        self.each(threads, self._run, tasks, self._keep_run)
        imported = [
            Row(row["cell"], self._cell_facts[row["cell"]], row["policy"], row["figures"])
            for row in self._store.rows("run")
            if "source" in row and row["cell"] in self._cell_facts
        ]
        return self._rows + imported

    def _keep_capacity(self, place: Cell, found: tuple[str, float, bool]) -> None:
        key, speed, is_new = found
        self._capacity[place] = speed
        if is_new:
            facts = {name: fact for name, fact in place.facts().items() if name in _OF_CAPACITY}
            self._store.add("capacity", key, {**facts, "mfu": place.realism.mfu, "speed": speed})

    def _keep_run(self, task: tuple[Cell, str], found: tuple[str, str, dict[str, float | None], bool]) -> None:
        (cell, policy), (key, cell_key, figures, is_new) = task, found
        facts = self._cell_facts[cell_key] = cell.facts()
        if is_new:
            self._store.add("run", key, {**facts, "cell": cell_key, "policy": policy, "figures": figures})
        self._rows.append(Row(cell_key, facts, policy, figures))

    def _find_capacity(self, place: Cell) -> tuple[str, float, bool]:
        """Return key and value of a capacity, and whether it is new."""
        requests = self.shared.take(_source(place), partial(_Requests.of, place))
        fleet = place.workers(requests.workload.block_size)
        key = capacity_key(requests.fingerprint, fleet)
        known = self._store.get("capacity", key)
        speed = known["speed"] if known else capacity(requests.workload, fleet, place.trace.label)
        self.shared.drop(_source(place))
        self.report(_CAPACITY_RUNS)
        return key, float(speed), known is None

    def _run(self, task: tuple[Cell, str]) -> tuple[str, str, dict[str, float | None], bool]:
        """Return keys and figures of a run, and whether it is new."""
        cell, policy = task
        source = _source(cell)
        requests = self.shared.take(source, partial(_Requests.of, cell))
        fleet = cell.workers(requests.workload.block_size)
        speed = cell.load * self._capacity[_place(cell)]
        cell_key = cell.key(requests.fingerprint, fleet, speed)
        key = digest([cell_key, policy])
        known = self._store.get("run", key)
        if known:
            figures = known["figures"]
        else:
            profile = self.shared.take(("profile", source), lambda: PoolProfile(requests.workload))
            sped = self.shared.take(("sped", cell), lambda: _Sped.of(requests.workload, speed, cell))
            result = self._simulate(cell, policy, sped, fleet)
            bound = profile.hits(fleet.cache_tokens // sped.workload.block_size)
            figures = figures_of(measure(result, slo=SLO, bound=bound, infinite=bound))
            if cell.trace.loop == "open":
                figures["session_mean_s"] = None  # the clock's, whatever the policy
        for shared in _used(cell):
            self.shared.drop(shared)
        self.report(1)
        return key, cell_key, figures, known is None

    def _simulate(self, cell: Cell, policy: str, sped: _Sped, fleet: FleetSpec) -> SimResult:
        return simulate(
            sped.workload,
            fleet,
            policy,
            seed=cell.seed,
            signals=cell.realism.signals,
            gateways=cell.realism.gateways,
            sharing=cell.realism.sharing,
            incidents=cell.realism.incidents_in(sped.span_s),
            prepared=sped.prepared,
            progress=lambda _done: self.report(),
        )
