"""The learned policy on a small part of the grid that `python -m benches.learned_grid` runs whole."""

from __future__ import annotations

from typing import Any

import pytest
from benches.learned.cells import SETTLED_S, Place, figures
from benches.learned.document import in_distribution

from cachelb.sim import FleetSpec, SimResult, simulate

PLACES = {
    "medium": Place("prefix-mixed", "8xa30", 0.7, seed=1, count=4_500),
    "saturated": Place("prefix-50", "8xa30", 0.95, seed=1, count=5_500),
    "unlike": Place("prefix-mixed", "7xl20+8xa30", 0.4, seed=1, count=4_500),
}


def run(place: Place, policy: str) -> SimResult:
    options: dict[str, Any] = {"training": "inline"} if policy == "learned" else {}
    return simulate(place.requests, FleetSpec.parse(place.fleet), policy, seed=place.seed, **options)


@pytest.fixture(scope="module", params=PLACES)
def both(request: pytest.FixtureRequest) -> tuple[SimResult, SimResult]:
    """The same requests, routed by the learned policy and by the baseline."""
    place = PLACES[request.param]
    return run(place, "learned"), run(place, "prefix-cache-and-load")


def test_the_model_comes_soon_and_decides(both: tuple[SimResult, SimResult]) -> None:
    told = figures(both[0])
    assert told["model_s"] < SETTLED_S
    assert in_distribution(told["model_reasons"]) >= 0.8


def test_it_is_not_worse_than_the_baseline_once_settled(both: tuple[SimResult, SimResult]) -> None:
    learned, baseline = (figures(result)["later"] for result in both)
    assert baseline["mean"] / learned["mean"] >= 0.97
    assert baseline["p99"] / learned["p99"] >= 0.97
