"""Sessions of agents as a benchmark: how much later each ends than on an idle fleet, and the GPU time that takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from cachelb.arguments import number
from cachelb.sim.league.traces import NO_REPORTS
from cachelb.sim.metrics import Quantiles, hit_rate, latencies
from cachelb.sim.result import sessions_of
from cachelb.sim.shared import Shared
from cachelb.sim.simulation import prepare, simulate

if TYPE_CHECKING:
    import numpy.typing as npt

    from cachelb._core import SimWorkload
    from cachelb.sim.fleet import FleetSpec
    from cachelb.sim.result import SimResult
    from cachelb.sim.workloads import Workload

_IDLE_SPEED = 0.01
_IDLE_POLICY = "sticky-until-saturated"
_NEVER_S = float("inf")


@dataclass(frozen=True, slots=True)
class SessionFigures:
    """The sessions of one run. A session's engine time is that of its requests, from arrival to end, without pauses.

    Attributes:
        sessions: How many there are.
        completed: Share of them with every request served whole.
        slowdown: Engine time of those, as a multiple of the same session's on an idle fleet.
        on_time: Share of all sessions that completed with no more than the slowdown allowed.
        gpu_h_per_session: Hours at work of all GPUs, per session on time; infinite if there is none.
        ttft_s: Time to the first token of requests served whole.
        tpot_s: Per token after the first.
        e2e_s: From arrival to the end.
        session_s: From the first arrival of a session to the end of its last request, pauses included.
        hit_rate: Cached by all prompt tokens at the first admission.

    Example:
        >>> from cachelb.sim import FleetSpec, build
        >>> agents = lambda seed: build("agent", seed=seed, count=60)
        >>> [figures] = measure_sessions(agents, FleetSpec.parse("2xh100"), ["adaptive"])["adaptive"]
        >>> figures.completed, figures.slowdown.p50 >= 1
        (1.0, True)
    """

    sessions: int
    completed: float
    slowdown: Quantiles
    on_time: float
    gpu_h_per_session: float
    ttft_s: Quantiles
    tpot_s: Quantiles
    e2e_s: Quantiles
    session_s: Quantiles
    hit_rate: float

    @classmethod
    def of(cls, result: SimResult, idle: SimResult, fleet: FleetSpec, *, within: float) -> SessionFigures:
        """Measure a run beside one of the same requests on an idle fleet."""
        took_s, is_whole = _engine_times(result)
        slowdown = took_s[is_whole] / _engine_times(idle)[0][is_whole]
        on_time = int((slowdown <= within).sum())
        gpus = np.array([worker.tensor_parallel for worker in fleet])
        gpu_h = float((result.busy_s * gpus).sum()) / 3600
        return cls(
            sessions=len(is_whole),
            completed=float(is_whole.mean()),
            slowdown=Quantiles.of(slowdown),
            on_time=on_time / len(is_whole),
            gpu_h_per_session=gpu_h / on_time if on_time else float("inf"),
            hit_rate=hit_rate(result),
            **latencies(result),
        )


def measure_sessions(
    workload: Callable[[int], Workload],
    fleet: FleetSpec,
    policies: Sequence[str],
    *,
    seeds: Sequence[int] = (0,),
    within: float = 1.5,
    threads: int = 1,
    progress: Callable[[float], object] | None = None,
    **options: Any,  # noqa: ANN401 - those of `simulate`
) -> dict[str, list[SessionFigures]]:
    """Run every policy on the sessions of every seed.

    Args:
        workload: Makes the requests of a seed; each must be of a session.
        fleet: The workers.
        policies: Names, as `simulate` takes them.
        seeds: One run each per policy.
        within: Most engine time of a session on time, as a multiple of that on an idle fleet.
        threads: Runs at a time; their number changes no result.
        progress: Called with the share of the runs that are done.
        **options: Options of `simulate`.

    Returns:
        Figures by policy, in the order of the seeds.

    Raises:
        ValueError: Requests have no sessions, or a setting is out of range.
        TypeError: A policy does not take an option.
    """
    number("within", within, least=1.0)
    policies = list(dict.fromkeys(policies))
    tasks = list(product(policies, seeds))
    shared = Shared(Counter(seed for _, seed in tasks))

    def requests(seed: int) -> tuple[Workload, SimWorkload, SimResult]:
        found = workload(seed)
        if not all(found.session or ("",)):
            raise ValueError(f"{found.name!r} has requests without a session; take a workload such as coding-agent")
        slow = found.speed_up(_IDLE_SPEED)
        idle = simulate(slow, fleet, _IDLE_POLICY, seed=seed, signals=NO_REPORTS, sample_interval_s=_NEVER_S)
        return found, prepare(found), idle

    def one(policy: str, seed: int) -> SessionFigures:
        found, prepared, idle = shared.take(seed, lambda: requests(seed))
        result = simulate(found, fleet, policy, seed=seed, prepared=prepared, sample_interval_s=_NEVER_S, **options)
        shared.drop(seed)
        return SessionFigures.of(result, idle, fleet, within=within)

    figures: list[SessionFigures] = []
    with ThreadPoolExecutor(threads) as pool:
        for found in pool.map(lambda task: one(*task), tasks):
            figures.append(found)
            if progress is not None:
                progress(len(figures) / len(tasks))
    return {policy: figures[at * len(seeds) : (at + 1) * len(seeds)] for at, policy in enumerate(policies)}


def _engine_times(result: SimResult) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Return the engine time of every session, and whether all of it was served."""
    session, is_whole = sessions_of(result)
    took_s = np.where(result.finished, result.finish_s - result.arrival_s, 0.0)
    return np.bincount(session, weights=took_s, minlength=len(is_whole)).astype(np.float64), is_whole
