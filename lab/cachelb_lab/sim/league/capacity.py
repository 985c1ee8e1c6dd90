"""The rate of a trace that a fleet sustains: the unit of a league's loads."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from cachelb._core import SimWorkload
from cachelb_lab.sim.experiments.saturation import LONGEST_S, highest, keeps_up, waits_of_thirds
from cachelb_lab.sim.fleet import FleetSpec
from cachelb_lab.sim.league.cells import FIRST_SEED, digest
from cachelb_lab.sim.league.traces import opened
from cachelb_lab.sim.result import SimResult
from cachelb_lab.sim.simulation import NO_REPORTS, prepare, simulate
from cachelb_lab.sim.workloads import Workload

REFERENCES = ("cache-aware", "prefill-times-batch(crowding=1)", "sticky-until-saturated")
"""A rate is kept up with if one of these does."""

_STEP, _MOST_STEPS, _PROBES = 2.0, 16, 5
_MOST, _LATE_SHARE = 0.95, 0.25
_IDLE_SPEED = 0.01


def capacity(workload: Workload, fleet: FleetSpec, label: str = "trace") -> float:
    """Return by how much arrivals can be sped up before the queues of every reference policy grow.

    Doubled or halved from the trace's own speed until one speed is kept up with and the next is not, then five halvings
    of the interval between on a logarithmic scale: 2 % above the answer, no reference keeps up. Not more than 21 speeds
    are tried. Turns that follow answers come by the clock meanwhile, as a closed loop has no queue that grows.

    A speed is kept up with if the wait for first tokens, beyond that on an idle fleet, does not grow over the run
    (`keeps_up`), which must last long enough to show it (`lasts`): of a trace with less than some hundred requests per
    worker, the answer is below the rate that the fleet could sustain.
    """
    if (workload.parent >= 0).any():
        workload = opened(workload)

    idle = _idle(workload, fleet)

    @cache
    def bears(speed: float) -> bool:
        faster = workload.speed_up(speed)
        prepared = prepare(faster)
        runs = (_run(faster, fleet, policy, prepared) for policy in REFERENCES)
        return any(keeps_up(each, idle) and lasts(each, idle) for each in runs)

    try:
        return highest(bears, start=1.0, step=_STEP, probes=_PROBES, most_steps=_MOST_STEPS)
    except ValueError as error:
        raise ValueError(
            f"{label} on {fleet.describe()}: no load that the fleet just keeps up with: {error}, as a factor of the "
            f"rate; take more requests or fewer workers where it is borne, other workers where it is not"
        ) from error


def _run(workload: Workload, fleet: FleetSpec, policy: str, prepared: SimWorkload) -> SimResult:
    """Run a reference, which uses no reports."""
    never = float("inf")
    return simulate(
        workload, fleet, policy, seed=FIRST_SEED, signals=NO_REPORTS, prepared=prepared, sample_interval_s=never
    )


def _idle(workload: Workload, fleet: FleetSpec) -> SimResult:
    """Run requests so slowly that none waits for another; answers have one token, as only the first is looked at."""
    count = len(workload)
    short = replace(
        workload.speed_up(_IDLE_SPEED),
        output_tokens=np.ones(count, dtype=np.uint32),
        output_hashes=np.empty(0, dtype=np.uint64),
        output_offsets=np.zeros(count + 1, dtype=np.uint64),
    )
    return _run(short, fleet, REFERENCES[0], prepare(short))


def lasts(result: SimResult, idle: SimResult) -> bool:
    """Return whether a run is long enough, and even enough, to show whether queues grow.

    Requests that all come at once fit into the batches of engines: none waits for its first token, and all are slow. So
    95 % must be over less than a quarter of the time of the arrivals after 95 % have come. And a fleet that is overrun
    and recovers does not keep up: no third of the requests may wait for more than `LONGEST_S` beyond twice its wait on
    an idle fleet.

    Example:
        >>> from cachelb_lab.sim import FleetSpec, build, simulate
        >>> chats, fleet = opened(build("chat", seed=1, count=300)), FleetSpec.parse("4xl40s")
        >>> idle, busy = (simulate(chats.speed_up(speed), fleet) for speed in (0.1, 100))
        >>> lasts(idle, idle), lasts(busy, idle)
        (True, False)
    """
    came = np.isfinite(result.arrival_s)
    arrival_s = result.arrival_s[came]
    finish_s = np.nan_to_num(result.finish_s[came], nan=result.end_s)
    late_s = np.quantile(finish_s, _MOST) - np.quantile(arrival_s, _MOST)
    waits, least = waits_of_thirds(result), waits_of_thirds(idle)
    if waits is None or least is None:
        return False
    return bool(late_s < _LATE_SHARE * np.ptp(arrival_s) and (waits < LONGEST_S + 2 * least).all())


def capacity_key(fingerprint: str, fleet: FleetSpec) -> str:
    """Return the key of a capacity, 32 hexadecimal digits."""
    method = [*REFERENCES, _STEP, _MOST_STEPS, _PROBES, _MOST, _LATE_SHARE, _IDLE_SPEED, LONGEST_S, FIRST_SEED]
    gpus = [worker.gpu.name for worker in fleet]
    return digest({"capacity": method, "requests": fingerprint, "fleet": fleet.native(), "gpus": gpus})
