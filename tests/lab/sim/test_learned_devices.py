"""Where the learned policy sends requests in simulated engines: in fleets of unlike devices, and on a part of a grid.

The devices are those of Lodestar (seeds/003, Figure 10); `python -m benches.learned_grid` runs the whole grid.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from benches.learned import workloads
from benches.learned.cells import SETTLED_S, Place, figures
from benches.learned.document import in_distribution

from cachelb_lab.sim import FleetSpec, SimResult, prepare, simulate

SETTLED = 1_000
"""Requests until all that is measured is of a model."""


class Use(NamedTuple):
    """One half's shares of the requests and the computed tokens, and mean times to first tokens."""

    requests: float
    tokens: float
    ttft_s: float
    others_ttft_s: float


def uses(workload: str, devices: str, device: str, *baselines: str) -> tuple[Use, ...]:
    """By the learned policy, and by others."""
    fleet, requests = FleetSpec.parse(devices), workloads.make(workload, rate=7.0, count=2_400, seed=1)
    prepared, found = prepare(requests), []
    for policy in ("learned", *baselines):
        options: dict[str, Any] = {"n_min": 400, "theta": 600} if policy == "learned" else {}
        result = simulate(requests, fleet, policy, seed=1, prepared=prepared, **options)
        on = np.array([worker.gpu.name == device for worker in fleet])[result.worker][SETTLED:]
        computed = (requests.prompt_tokens - result.cached_tokens)[SETTLED:]
        ttft = (result.first_token_s - result.arrival_s)[SETTLED:]
        found.append(
            Use(*map(float, (on.mean(), computed[on].sum() / computed.sum(), ttft[on].mean(), ttft[~on].mean())))
        )
    return tuple(found)


def test_fewer_requests_go_to_devices_with_little_memory() -> None:
    """L20 have five times the room of A30 for KV and compute a little faster.

    Published: prefix-cache-and-load makes high tails on A30, whose caches fill up, while L20 have room.
    """
    learned, *others = uses("prefix-mixed", "3xl20+3xa30", "a30", "least-loaded", "prefix-cache-and-load")
    for other in others:
        assert learned.requests < 0.8 * other.requests
        assert learned.tokens < 0.6 * other.tokens
        assert other.ttft_s > 1.4 * other.others_ttft_s
    assert learned.ttft_s < learned.others_ttft_s


def test_fewer_requests_go_to_devices_that_cache_nothing() -> None:
    """Published for 7 x A30 and 8 x V100; the policies do not know that these keep no prefixes."""
    learned, other = uses("prefix-50", "3xa30+3xv100", "v100-32", "least-loaded")
    assert learned.requests < 0.9 * other.requests
    assert learned.ttft_s < 0.8 * other.ttft_s
    assert learned.others_ttft_s < 0.8 * other.others_ttft_s


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
    """Requests, routed by the learned policy and by the baseline."""
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
