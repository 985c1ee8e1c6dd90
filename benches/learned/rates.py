"""How many requests per second a fleet can take: the loads of the grid are shares of that.

The paper goes "from medium load up to the cluster saturation point". That point depends on what routing finds in
caches, so it is taken from the policy that all others are compared with: the highest rate at which the queues of
`prefix-cache-and-load` stay bounded. Round robin saturates at half of it where most of a prompt is shared.

    python -m benches.learned.rates     # finds CAPACITY anew, about five minutes
"""

from __future__ import annotations

from benches.learned.workloads import WORKLOADS, make

from cachelb_lab.sim import FleetSpec, simulate
from cachelb_lab.sim.experiments.saturation import highest, keeps_up

BASELINE = "prefix-cache-and-load"
FLEETS = ("8xa30", "7xa30+8xv100", "7xl20+8xa30")
"""The paper's; `v100` caches no prefixes."""
COUNT = 6_000
PROBES = 6

_MEASURED_AS = {"rate-shift": "prefix-mixed", "prefix-shift": "prefix-05", "recurring": "prefix-05"}
"""The harder part of a workload that changes sets the capacity of a fleet."""

CAPACITY: dict[tuple[str, str], float] = {
    ("conversation", "8xa30"): 17.8,
    ("tool-agent", "8xa30"): 13.5,
    ("long-documents", "8xa30"): 12.0,
    ("prefill-only", "8xa30"): 15.8,
    ("prefix-10", "8xa30"): 9.8,
    ("prefix-30", "8xa30"): 11.2,
    ("prefix-50", "8xa30"): 13.2,
    ("prefix-70", "8xa30"): 15.1,
    ("prefix-mixed", "8xa30"): 12.4,
    ("prefix-05", "8xa30"): 9.55,
    ("conversation", "7xa30+8xv100"): 35.9,
    ("tool-agent", "7xa30+8xv100"): 22.0,
    ("long-documents", "7xa30+8xv100"): 19.9,
    ("prefill-only", "7xa30+8xv100"): 25.8,
    ("prefix-10", "7xa30+8xv100"): 18.2,
    ("prefix-30", "7xa30+8xv100"): 19.9,
    ("prefix-50", "7xa30+8xv100"): 22.0,
    ("prefix-70", "7xa30+8xv100"): 24.2,
    ("prefix-mixed", "7xa30+8xv100"): 20.8,
    ("prefix-05", "7xa30+8xv100"): 17.8,
    ("conversation", "7xl20+8xa30"): 51.9,
    ("tool-agent", "7xl20+8xa30"): 36.4,
    ("long-documents", "7xl20+8xa30"): 38.0,
    ("prefill-only", "7xl20+8xa30"): 37.3,
    ("prefix-10", "7xl20+8xa30"): 22.3,
    ("prefix-30", "7xl20+8xa30"): 25.2,
    ("prefix-50", "7xl20+8xa30"): 30.5,
    ("prefix-70", "7xl20+8xa30"): 38.5,
    ("prefix-mixed", "7xl20+8xa30"): 28.0,
    ("prefix-05", "7xl20+8xa30"): 21.6,
}


def rate(workload: str, fleet: str, load: float) -> float:
    """Return the arrivals per second of a cell.

    Args:
        workload: One of the workloads.
        fleet: One of `FLEETS`.
        load: Part of the baseline's capacity.

    Returns:
        The rate; of `rate-shift` after the shift.
    """
    return load * CAPACITY[_MEASURED_AS.get(workload, workload), fleet]


def capacity(workload: str, fleet: str, policy: str = BASELINE) -> float:
    """Return the highest rate at which queues do not grow without end.

    Args:
        workload: One of the workloads.
        fleet: One of the fleets.
        policy: The policy that routes.

    Returns:
        Requests per second, to 3 %.
    """
    workers = FleetSpec.parse(fleet)

    def bears(rate: float) -> bool:
        return keeps_up(simulate(make(workload, rate=rate, count=COUNT, seed=1), workers, policy, seed=1))

    return highest(bears, start=8.0, step=1.5, probes=PROBES)


if __name__ == "__main__":
    for fleet in FLEETS:
        for name in dict.fromkeys(_MEASURED_AS.get(name, name) for name in WORKLOADS):
            kept = {policy: capacity(name, fleet, policy) for policy in (BASELINE, "round-robin", "cache-aware")}
            print(f'    ("{name}", "{fleet}"): {kept[BASELINE]:.3g},  # {kept}', flush=True)
