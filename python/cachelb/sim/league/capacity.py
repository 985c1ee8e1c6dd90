"""What a fleet keeps up with of a trace: the unit of a league's loads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cachelb.sim.league.cells import FIRST_SEED, digest
from cachelb.sim.league.traces import opened
from cachelb.sim.saturation import highest, keeps_up
from cachelb.sim.simulation import prepare, simulate

if TYPE_CHECKING:
    from cachelb.sim.fleet import FleetSpec
    from cachelb.sim.result import SimResult
    from cachelb.sim.workloads import Workload

REFERENCES = ("cache-aware", "prefill-times-batch(crowding=1)", "sticky-until-saturated")
"""A rate is kept up with if one of these does."""

_STEP, _MOST_STEPS, _PROBES = 2.0, 16, 5
_GROWTH, _SLACK_S = 1.4, 0.1


def capacity(workload: Workload, fleet: FleetSpec, label: str = "trace") -> float:
    """Return by how much arrivals can be sped up before the queues of every reference policy grow.

    Doubled or halved from the trace's own speed until one speed is kept up with and the next is not, then five halvings
    of what lies between on a scale of logarithms: 2 % above the answer, no reference keeps up. Not more than 21 speeds
    are tried. Turns that follow answers come by the clock meanwhile, as a closed loop has no queue that grows.

    A speed is kept up with if neither the wait for the first token (`keeps_up`) nor the number of requests in the fleet
    (`settles`) grows over the run. A fleet that takes long to fill needs a trace of some hundred requests per worker:
    of a shorter one, the answer is below what it could bear for long.

    Args:
        workload: The requests, at their own speed.
        fleet: The workers.
        label: What messages call the requests.

    Returns:
        A factor of arrival times.

    Raises:
        ValueError: The fleet keeps up with all requests at once, or with no speed.

    Example:
        >>> from cachelb.sim import FleetSpec, build
        >>> chats = build("rag", seed=1, count=200)
        >>> two, four = (capacity(chats, FleetSpec.parse(f"{count}xl40s")) for count in (2, 4))
        >>> two < four
        True
    """
    if (workload.parent >= 0).any():
        workload = opened(workload)

    def bears(speed: float) -> bool:
        faster = workload.speed_up(speed)
        prepared = prepare(faster)
        runs = (simulate(faster, fleet, policy, seed=FIRST_SEED, prepared=prepared) for policy in REFERENCES)
        return any(keeps_up(run) and settles(run) for run in runs)

    try:
        return highest(bears, start=1.0, step=_STEP, probes=_PROBES, most_steps=_MOST_STEPS)
    except ValueError as error:
        raise ValueError(
            f"{label} on {fleet.describe()}: no load that the fleet just keeps up with: {error}, as a factor of the "
            f"rate; take more requests or fewer workers where it is borne, other workers where it is not"
        ) from error


def settles(result: SimResult) -> bool:
    """Return whether the number of requests in the fleet stops growing while requests arrive.

    Where work comes faster than it is done, the last third of the time of the arrivals has 5/3 as many in the fleet as
    the second. Numbers are taken by arrivals in that third, so that a trace whose rate changes may settle too.

    Args:
        result: A run at one rate.

    Returns:
        Whether it does.

    Example:
        >>> from cachelb.sim import FleetSpec, build, simulate
        >>> chats, fleet = build("rag", seed=1, count=300), FleetSpec.parse("4xl40s")
        >>> [settles(simulate(chats.speed_up(speed), fleet)) for speed in (0.1, 100)]
        [True, False]
    """
    came = np.isfinite(result.arrival_s)
    arrival_s = result.arrival_s[came]
    finish_s = np.nan_to_num(result.finish_s[came], nan=result.end_s)
    edges = np.linspace(arrival_s.min(), arrival_s.max(), 4)
    inside = []
    for begin_s, end_s in zip(edges[1:], edges[2:], strict=False):
        arrived = int(((arrival_s > begin_s) & (arrival_s <= end_s)).sum())
        stay_s = np.clip(np.minimum(finish_s, end_s) - np.maximum(arrival_s, begin_s), 0.0, None)
        inside.append(float(stay_s.sum()) / max(1, arrived))
    middle, last = inside
    return last < _GROWTH * middle + _SLACK_S


def capacity_key(fingerprint: str, fleet: FleetSpec) -> str:
    """Return what tells a capacity from all others.

    Args:
        fingerprint: Of the requests.
        fleet: The workers.

    Returns:
        32 hexadecimal digits.
    """
    method = [*REFERENCES, _STEP, _MOST_STEPS, _PROBES, _GROWTH, _SLACK_S, FIRST_SEED]
    gpus = [worker.gpu.name for worker in fleet]
    return digest({"capacity": method, "requests": fingerprint, "fleet": fleet.native(), "gpus": gpus})
