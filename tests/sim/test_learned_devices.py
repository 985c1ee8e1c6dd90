"""Where Lodestar sends requests in fleets of unlike devices (seeds/003, Figure 10), in simulated engines."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from benches.learned import workloads

from cachelb.sim import FleetSpec, prepare, simulate

SETTLED = 1_000
"""Requests until all that is measured is of a model."""


class Use(NamedTuple):
    """What one half of a fleet got of the requests and the computed tokens, and mean times to first tokens."""

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
    """Published for 7 x A30 and 8 x V100, of which nobody is told that they keep no prefixes."""
    learned, other = uses("prefix-50", "3xa30+3xv100", "v100-32", "least-loaded")
    assert learned.requests < 0.9 * other.requests
    assert learned.ttft_s < 0.8 * other.ttft_s
    assert learned.others_ttft_s < 0.8 * other.others_ttft_s
