"""Sessions of agents as a benchmark: how much later each ends than on an idle fleet, and the GPU time that takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cachelb_lab.sim.figures.metrics import Quantiles
from cachelb_lab.sim.result import sessions_of
from cachelb_lab.sim.simulation import NO_REPORTS, simulate

if TYPE_CHECKING:
    import numpy.typing as npt

    from cachelb_lab.sim.fleet import FleetSpec
    from cachelb_lab.sim.result import SimResult
    from cachelb_lab.sim.workloads import Workload

_IDLE_SPEED = 0.01
_IDLE_POLICY = "sticky-until-saturated"


@dataclass(frozen=True, slots=True)
class SessionFigures:
    """The sessions of one run. A session's engine time is that of its requests, from arrival to end, without pauses.

    Attributes:
        count: How many there are.
        completed: Share of them with every request served whole.
        slowdown: Engine time of those, as a multiple of the same session's on an idle fleet.
        on_time: Share of all sessions that completed with no more than the slowdown allowed.
        gpu_h_per_session: Hours at work of all GPUs, per session on time; infinite if there is none.

    Example:
        >>> from cachelb_lab.sim import FleetSpec, build, compare
        >>> found = compare(build("agent", seed=1, count=60), FleetSpec.parse("2xh100"), ["adaptive"], within=1.5)
        >>> figures = found.cells[0].runs[0].metrics.sessions
        >>> figures.completed, figures.slowdown.p50 >= 1
        (1.0, True)
    """

    count: int
    completed: float
    slowdown: Quantiles
    on_time: float
    gpu_h_per_session: float

    @classmethod
    def of(cls, result: SimResult, idle: SimResult, fleet: FleetSpec, *, within: float) -> SessionFigures:
        """Measure a run beside one of the same requests on an idle fleet."""
        took_s, is_whole = _engine_times(result)
        slowdown = took_s[is_whole] / _engine_times(idle)[0][is_whole]
        on_time = int((slowdown <= within).sum())
        gpus = np.array([worker.tensor_parallel for worker in fleet])
        gpu_h = float((result.busy_s * gpus).sum()) / 3600
        return cls(
            count=len(is_whole),
            completed=float(is_whole.mean()),
            slowdown=Quantiles.of(slowdown),
            on_time=on_time / len(is_whole),
            gpu_h_per_session=gpu_h / on_time if on_time else float("inf"),
        )


def run_idle(workload: Workload, fleet: FleetSpec, seed: int) -> SimResult:
    """Run sessions so slowly that none waits for another; ValueError for requests without a session."""
    if not all(workload.session or ("",)):
        raise ValueError(f"{workload.name!r} has requests without a session; take a workload such as coding-agent")
    never_s = float("inf")
    slow = workload.speed_up(_IDLE_SPEED)
    return simulate(slow, fleet, _IDLE_POLICY, seed=seed, signals=NO_REPORTS, sample_interval_s=never_s)


def _engine_times(result: SimResult) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Return the engine time of every session, and whether all of it was served."""
    session, is_whole = sessions_of(result)
    took_s = np.where(result.finished, result.finish_s - result.arrival_s, 0.0)
    return np.bincount(session, weights=took_s, minlength=len(is_whole)).astype(np.float64), is_whole
