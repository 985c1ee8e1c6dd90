"""Where Lodestar sends requests in fleets of unlike devices (seeds/003, Figure 10), in simulated engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from benches.learned import workloads

from cachelb.sim import FleetSpec, SimResult, prepare, simulate

SETTLED = 1_000
"""Requests until all that is measured is of a model."""
SOON: dict[str, Any] = {"n_min": 400, "theta": 600}
BASELINES = ("least-loaded", "prefix-cache-and-load")


@dataclass(frozen=True)
class Use:
    """What the devices of one kind, half of a fleet, got.

    Attributes:
        requests: Their share of the requests.
        tokens: Their share of the prompt tokens that had to be computed.
        ttft_s: Mean time to the first token there.
        others_ttft_s: The same on the other half.
    """

    requests: float
    tokens: float
    ttft_s: float
    others_ttft_s: float


def use(result: SimResult, fleet: FleetSpec, device: str) -> Use:
    late = slice(SETTLED, None)
    on = np.array([worker.gpu.name == device for worker in fleet])[result.worker][late]
    computed = (result.workload.prompt_tokens - result.cached_tokens)[late]
    ttft = (result.first_token_s - result.arrival_s)[late]
    return Use(
        float(on.mean()),
        float(computed[on].sum() / computed.sum()),
        float(ttft[on].mean()),
        float(ttft[~on].mean()),
    )


def uses(workload: str, rate: float, devices: str, device: str, policies: tuple[str, ...]) -> dict[str, Use]:
    fleet = FleetSpec.parse(devices)
    requests = workloads.make(workload, rate=rate, count=2_400, seed=1)
    prepared = prepare(requests)
    found = {}
    for policy in policies:
        options = SOON if policy == "learned" else {}
        found[policy] = use(simulate(requests, fleet, policy, seed=1, prepared=prepared, **options), fleet, device)
    return found


@pytest.fixture(scope="module")
def on_a30() -> dict[str, Use]:
    """What A30 get beside as many L20, which have five times the room for KV and compute a little faster."""
    small, large = (FleetSpec.parse(one).workers[0].kv_blocks for one in ("1xa30", "1xl20"))
    assert large > 4 * small
    return uses("prefix-mixed", 7.0, "3xl20+3xa30", "a30", ("learned", *BASELINES))


@pytest.mark.parametrize("baseline", BASELINES)
def test_fewer_requests_go_to_devices_with_little_memory(on_a30: dict[str, Use], baseline: str) -> None:
    assert on_a30["learned"].requests < 0.8 * on_a30[baseline].requests
    assert on_a30["learned"].tokens < 0.6 * on_a30[baseline].tokens


@pytest.mark.parametrize("baseline", BASELINES)
def test_those_who_ignore_memory_overload_them(on_a30: dict[str, Use], baseline: str) -> None:
    """Published: prefix-cache-and-load makes high tails on A30, whose caches fill up, while L20 have room."""
    assert on_a30[baseline].ttft_s > 1.4 * on_a30[baseline].others_ttft_s
    assert on_a30["learned"].ttft_s < on_a30["learned"].others_ttft_s


def test_fewer_requests_go_to_devices_that_cache_nothing() -> None:
    """Published for 7 x A30 and 8 x V100, of which nobody is told that they keep no prefixes."""
    found = uses("prefix-50", 7.0, "3xa30+3xv100", "v100-32", ("learned", "least-loaded"))
    assert found["learned"].requests < 0.9 * found["least-loaded"].requests
    for half in ("ttft_s", "others_ttft_s"):
        assert getattr(found["learned"], half) < 0.8 * getattr(found["least-loaded"], half)
