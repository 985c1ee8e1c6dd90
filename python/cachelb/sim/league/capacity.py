"""What a fleet keeps up with of a trace: the unit of a league's loads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachelb.sim.league.cells import FIRST_SEED, digest
from cachelb.sim.league.traces import opened
from cachelb.sim.saturation import highest, keeps_up
from cachelb.sim.simulation import prepare, simulate

if TYPE_CHECKING:
    from cachelb.sim.fleet import FleetSpec
    from cachelb.sim.workloads import Workload

REFERENCES = ("cache-aware", "prefill-times-batch(crowding=1)", "sticky-until-saturated")
"""A rate is kept up with if one of these does."""

_STEP, _MOST_STEPS, _PROBES = 2.0, 16, 5


def capacity(workload: Workload, fleet: FleetSpec, label: str = "trace") -> float:
    """Return by how much arrivals can be sped up before the queues of every reference policy grow.

    Doubled or halved from the trace's own speed until one speed is kept up with and the next is not, then five halvings
    of what lies between on a scale of logarithms: 2 % above the answer, no reference keeps up. Not more than 20 speeds
    are tried. Turns that follow answers come by the clock meanwhile, as a closed loop has no queue that grows.

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
        return any(keeps_up(run) for run in runs)

    try:
        return highest(bears, start=1.0, step=_STEP, probes=_PROBES, most_steps=_MOST_STEPS)
    except ValueError as error:
        raise ValueError(
            f"{label} on {fleet.describe()}: no load that the fleet just keeps up with: {error}, as a factor of the "
            f"rate; take more requests or fewer workers where it is borne, other workers where it is not"
        ) from error


def capacity_key(fingerprint: str, fleet: FleetSpec) -> str:
    """Return what tells a capacity from all others.

    Args:
        fingerprint: Of the requests.
        fleet: The workers.

    Returns:
        32 hexadecimal digits.
    """
    method = [*REFERENCES, _STEP, _MOST_STEPS, _PROBES, FIRST_SEED]
    gpus = [worker.gpu.name for worker in fleet]
    return digest({"capacity": method, "requests": fingerprint, "fleet": fleet.native(), "gpus": gpus})
