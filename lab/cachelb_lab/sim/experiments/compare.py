"""Policies side by side: on the same requests, over several seeds and the values of one setting."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, replace
from itertools import chain, product
from typing import TYPE_CHECKING, Any

import numpy as np

from cachelb.common.arguments import listed, number, whole
from cachelb.router import Router
from cachelb.router.flat import grouped
from cachelb_lab.sim.contender import Contender, admission_apart
from cachelb_lab.sim.experiments.comparison import Cell, Comparison, Run
from cachelb_lab.sim.experiments.runs import Batch, Requests
from cachelb_lab.sim.figures.agentic import SessionFigures, run_idle
from cachelb_lab.sim.figures.metrics import Cost, Slo
from cachelb_lab.sim.fleet import FleetSpec
from cachelb_lab.sim.simulation import MOST_GATEWAYS, Signals
from cachelb_lab.sim.timing import Roofline
from cachelb_lab.sim.workloads import Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence
    from typing import TypeAlias

    from cachelb.policies import PolicyLike
    from cachelb_lab.sim.experiments.comparison import Setting, Sweep
    from cachelb_lab.sim.fleet import WorkerSpec
    from cachelb_lab.sim.result import SimResult

    PolicySource: TypeAlias = str | Callable[[], PolicyLike]
    WorkloadSource: TypeAlias = Workload | Callable[..., Workload]

_MOST_RUNS = 65_536
_WORKLOAD_SETTINGS = ("speed", "rate")
_FLEET_SETTINGS = ("mfu", "kv_tokens")
_SIGNAL_SETTINGS = (
    *("event_lag_s", "scrape_interval_s", "report_lag_s", "net_delay_s"),
    *("first_token_delay_s", "sharing_lag_s", "decision_s"),
)
RUN_SETTINGS = (*_WORKLOAD_SETTINGS, *_FLEET_SETTINGS, *_SIGNAL_SETTINGS, "gateways")
"""Settings that a sweep can change beside options of the router and of policies."""


def compare(
    workload: WorkloadSource,
    fleet: FleetSpec,
    policies: Sequence[PolicySource],
    *,
    seeds: Sequence[int] = (0,),
    sweep: Sweep | None = None,
    slo: Slo | None = None,
    within: float | None = None,
    signals: Signals | None = None,
    gateways: int = 1,
    sharing: bool = False,
    threads: int = 1,
    progress: Callable[[float], object] | None = None,
    **router_options: Any,  # noqa: ANN401 - the router's
) -> Comparison:
    """Run every policy with every seed and every value of a setting.

    Args:
        workload: The requests; or what makes them of a seed (``workload(seed)``, and
            ``workload(seed, rate=...)`` when ``rate`` is swept), so that seeds differ in them too.
        fleet: The workers.
        policies: Names as `simulate` takes them, or what makes a policy of your own, such as its class:
            every run gets a new one.
        seeds: One run each.
        sweep: A setting and its values.
        slo: Limits for goodput.
        within: Compare sessions with those of an idle fleet: the most engine time of one on time, as a multiple; each
            request must be of a session then.
        signals: The signals of gateways, and their delays.
        gateways: Routers before the fleet.
        sharing: Whether they share placements and bookings.
        threads: Runs at a time; their number changes no result.
        progress: Called now and then with the share of the work that is done, from the threads.
        **router_options: Options of `cachelb.Router` and of all the policies.

    Returns:
        The comparison.

    Raises:
        ValueError: A setting is out of range, nothing is to be compared, or requests have no sessions.
        TypeError: A policy does not take an option.

    Example:
        >>> from cachelb_lab.sim import FleetSpec, build, compare
        >>> found = compare(build("chat", seed=1, count=200), FleetSpec.parse("4xa30"), ["cache-aware", "random"])
        >>> aware, random = (cell.spreads["ttft_s.mean"].mean for cell in found.cells)
        >>> aware < random
        True
    """
    policies, seeds = listed("policies", policies, _MOST_RUNS), listed("seeds", seeds, _MOST_RUNS)
    for seed in seeds:
        whole("seeds", seed, 0, (1 << 64) - 1)
    for key, given in {"policies": policies, "seeds": seeds}.items():
        if not given:
            raise ValueError(f"{key} must name at least one")
    whole("gateways", gateways, 1, MOST_GATEWAYS)
    if within is not None:
        number("within", within, least=1.0)
    setup = _Setup(workload, fleet, signals or Signals(), gateways, sharing, router_options)
    values: tuple[Setting | None, ...] = (None,) if sweep is None else sweep.values
    setups = [setup if sweep is None else setup.at(sweep.name, value) for value in values]
    for one in setups:
        for policy in policies:
            one.check(policy)
    tasks = list(product(setups, seeds, policies))
    batch = Batch(chain.from_iterable(one.shared(seed) for one, seed, _ in tasks), len(tasks), progress)

    def run(task: tuple[_Setup, int, PolicySource]) -> Run:
        one, seed, policy = task
        requests, result = one.run(batch, seed, policy)
        sessions = None if within is None else one.sessions(batch, seed, result, within)
        batch.drop(*one.shared(seed))
        metrics = requests.measure(result, one.fleet, slo, sessions)
        return Run(seed, metrics, Cost.of(result), result if seed == seeds[0] else None)

    runs: list[Run] = []
    batch.each(threads, run, tasks, lambda _, made: runs.append(made))
    size, step = len(seeds) * len(policies), len(policies)
    cells = [
        Cell(_name(policy), value, tuple(runs[at * size + place : (at + 1) * size : step]))
        for at, value in enumerate(values)
        for place, policy in enumerate(policies)
    ]
    return Comparison(
        workload=_workload_facts(cells[0].result.workload),
        fleet=_fleet_facts(fleet),
        settings={
            "signals": asdict(setup.signals),
            "gateways": gateways,
            "sharing": sharing,
            "slo": None if slo is None else {key: limit for key, limit in asdict(slo).items() if math.isfinite(limit)},
            "within": within,
            "options": {key: _plain(value) for key, value in router_options.items()},
        },
        seeds=tuple(seeds),
        sweep=sweep,
        cells=tuple(cells),
    )


@dataclass(frozen=True, eq=False)
class _Setup:
    """All of a run but policy and seed."""

    source: WorkloadSource
    fleet: FleetSpec
    signals: Signals
    gateways: int
    sharing: bool
    options: Mapping[str, Any]
    speed: float = 1.0
    rate: float | None = None

    def at(self, name: str, value: Setting | None) -> _Setup:
        """Return the setup with one setting changed."""
        if name not in RUN_SETTINGS:
            return replace(self, options={**self.options, name: value})
        if isinstance(value, str) or value is None:
            raise TypeError(f"{name} must be a number, got {value!r}")
        change: dict[str, Any] = {name: value}
        if name == "rate" and isinstance(self.source, Workload):
            raise ValueError("rate can be swept of generated workloads only; sweep speed, which divides arrival times")
        if name in _WORKLOAD_SETTINGS:
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} must be positive, got {value}")
            return replace(self, **change)
        if name in _FLEET_SETTINGS:
            workers = tuple(_changed(worker, name, value) for worker in self.fleet)
            return replace(self, fleet=FleetSpec(workers))
        if name in _SIGNAL_SETTINGS:
            return replace(self, signals=replace(self.signals, **change))
        return replace(self, gateways=_whole(name, value))

    def check(self, policy: PolicySource) -> None:
        """Raise for a policy that cannot be run so."""
        rule: str | PolicyLike
        if isinstance(policy, str):
            named = Contender.parse(policy)
            rule, options = named.name, admission_apart({**self.options, **named.options})[0]
        else:
            rule, options = policy(), admission_apart(self.options)[0]
        try:
            Router(**grouped({"policy": rule, "replicas": self.gateways, **options}))
        except TypeError as error:
            known = ", ".join(RUN_SETTINGS)
            raise TypeError(f"{error}; leave it out for this policy. Settings of the run are {known}") from error

    def shared(self, seed: int) -> tuple[Hashable, Hashable]:
        """Return the keys of requests and of their run on an idle fleet among those of other runs."""
        source = (-1 if isinstance(self.source, Workload) else seed, self.speed, self.rate)
        return source, (*source, self.fleet)

    def run(self, batch: Batch, seed: int, policy: PolicySource) -> tuple[Requests, SimResult]:
        """Make one run."""
        requests: Requests = batch.take(self.shared(seed)[0], lambda: Requests(self._workload(seed)))
        return requests, batch.simulate(
            requests,
            self.fleet,
            policy if isinstance(policy, str) else policy(),
            seed=seed,
            signals=self.signals,
            gateways=self.gateways,
            sharing=self.sharing,
            **self.options,
        )

    def sessions(self, batch: Batch, seed: int, result: SimResult, within: float) -> SessionFigures:
        """Compare the sessions of a run with those of an idle fleet."""
        idle = batch.take(self.shared(seed)[1], lambda: run_idle(result.workload, self.fleet, seed))
        return SessionFigures.of(result, idle, self.fleet, within=within)

    def _workload(self, seed: int) -> Workload:
        source = self.source
        if not isinstance(source, Workload):
            source = source(seed) if self.rate is None else source(seed, rate=self.rate)
        return source if self.speed == 1 else source.speed_up(self.speed)


def _changed(worker: WorkerSpec, name: str, value: float) -> WorkerSpec:
    """Return a worker with one setting changed."""
    if name == "kv_tokens":
        return replace(worker, kv_tokens=_whole(name, value))
    if not isinstance(worker.timing, Roofline):
        raise TypeError("mfu can be swept of fleets with the roofline timing only")
    return replace(worker, timing=replace(worker.timing, mfu=value))


def _whole(name: str, value: float) -> int:
    """Return a count."""
    if value != int(value):
        raise ValueError(f"{name} must be a whole number, got {value}")
    return int(value)


def _name(policy: PolicySource) -> str:
    """Return the name of a policy."""
    return policy if isinstance(policy, str) else str(getattr(policy, "name", getattr(policy, "__name__", policy)))


def _plain(value: object) -> object:
    """Return an option as JSON has it."""
    return value if value is None or isinstance(value, (int, float, str)) else repr(value)


def _fleet_facts(fleet: FleetSpec) -> dict[str, Any]:
    """Describe workers, equal ones counted."""
    kinds = [
        {
            "count": count,
            "gpu": worker.gpu.name,
            "model": worker.model.name,
            "tensor_parallel": worker.tensor_parallel,
            "kv_tokens": worker.cache_tokens,
            "timing": {"kind": type(worker.timing).__name__.lower(), **asdict(worker.timing)},
        }
        for worker, count in Counter(fleet.workers).items()
    ]
    return {
        "description": fleet.describe(),
        "workers": len(fleet),
        "cache_tokens": fleet.cache_tokens,
        "kinds": kinds,
    }


def _workload_facts(workload: Workload) -> dict[str, Any]:
    """Describe requests; their hashes are left to the bound."""
    arrival_s = workload.arrival_s[workload.parent < 0]
    return {
        "name": workload.name,
        "seed": workload.seed,
        "block_size": workload.block_size,
        "requests": len(workload),
        "follow_up_requests": int((workload.parent >= 0).sum()),
        "duration_s": float(arrival_s.max() - arrival_s.min()) if len(arrival_s) else 0.0,
        "prompt_tokens": int(workload.prompt_tokens.sum(dtype=np.int64)),
        "output_tokens": int(workload.output_tokens.sum(dtype=np.int64)),
    }
