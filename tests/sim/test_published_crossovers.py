"""What Lodestar's authors saw of policies that learn nothing (seeds/003, Figures 1 and 2), in simulated engines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benches.learned import workloads

from cachelb.sim import FleetSpec, SimResult, Workload, prepare, simulate
from cachelb.sim.workloads import Draft, Piece, Plan, Poisson

SEVEN_L20 = FleetSpec.parse("7xl20")
SHARED = 0.8
LIVE, EACH = 5, 50
"""Groups of 50 requests, five of them at a time: prefixes hot enough to crowd one worker."""


def shared_prompts(tokens: int, rate: float) -> Workload:
    draft = Draft("shared", Plan(seed=1, count=2_500, arrivals=Poisson(rate)))
    living: list[list[Piece]] = []
    while not draft.full:
        while len(living) < LIVE:
            living.append([draft.piece(int(tokens * SHARED))] * EACH)
        group = living[int(draft.prefixes.integers(LIVE))]
        own = draft.piece(int(draft.lengths.normal(tokens * (1 - SHARED), tokens * 0.02)))
        draft.request([group.pop(), own], 100)
        living = [group for group in living if group]
    return draft.finish()


def ttft(requests: Workload, policy: str) -> tuple[float, float]:
    seconds = simulate(requests, SEVEN_L20, policy, seed=1).ttft_s
    return float(seconds.mean()), float(np.percentile(seconds, 99))


def test_affinity_wins_with_few_long_prompts_and_loses_with_many_short_ones() -> None:
    """Published for 7 x L20: the baseline is best at 5/s of 4K tokens; at 10/s of 1K least-request is 2.5 x better.

    Simulated L20 compute 6,280 tokens/s each, as in the authors' logs, so 10/s of 1K leave them idle and no policy
    queues; the reversal comes at 30/s. How long answers were, and how many prefixes were in use, is not published.
    """
    long, short = shared_prompts(4_000, 5), shared_prompts(1_000, 45)
    assert ttft(long, "prefix-cache-and-load")[0] < 0.97 * ttft(long, "least-loaded")[0]
    affine, balanced = ttft(short, "prefix-cache-and-load"), ttft(short, "least-loaded")
    assert affine[0] > 1.5 * balanced[0]
    assert affine[1] > 1.5 * balanced[1]


def test_the_baseline_degrades_by_its_fleet_wide_imbalance_rule() -> None:
    result = simulate(shared_prompts(1_000, 45), SEVEN_L20, "prefix-cache-and-load", seed=1)
    assert reasons(result)["imbalance"] > 0.05
    calm = simulate(shared_prompts(4_000, 5), SEVEN_L20, "prefix-cache-and-load", seed=1)
    assert reasons(calm).get("imbalance", 0.0) < 0.01


def reasons(result: SimResult) -> dict[str, float]:
    counts = np.bincount(result.reason, minlength=len(result.reasons)) / len(result.reason)
    return dict(zip(result.reasons, map(float, counts), strict=True))


@pytest.fixture(scope="module")
def by_threshold(conversation_trace: Path) -> dict[str, dict[float, float]]:
    """Mean TTFT of `prefix-cache` on 8 x A30 near saturation, by workload and threshold."""
    assert conversation_trace.exists()
    fleet = FleetSpec.parse("8xa30")
    found: dict[str, dict[float, float]] = {}
    for name, rate in {"conversation": 17.0, "tool-agent": 13.0}.items():
        requests = workloads.make(name, rate=rate, count=5_000, seed=1)
        prepared = prepare(requests)
        for tau in (0.05, 0.2, 0.4, 0.8):
            result = simulate(requests, fleet, "prefix-cache", seed=1, prepared=prepared, tau=tau)
            found.setdefault(name, {})[tau] = float(result.ttft_s.mean())
    return found


def test_workloads_have_different_best_thresholds(by_threshold: dict[str, dict[float, float]]) -> None:
    """Published: 20 % for tool-agent, 60 % for conversation; here about 40 % and at most 20 %.

    All chat rows of the generated tool-agent share a short system prompt, which a low threshold takes for affinity. The
    authors' trace of it is not at hand, so the order of the two is not asserted.
    """
    best = {name: min(means, key=lambda tau: means[tau]) for name, means in by_threshold.items()}
    assert best["tool-agent"] == 0.4
    assert best["conversation"] <= 0.2


def test_another_workloads_threshold_costs(by_threshold: dict[str, dict[float, float]]) -> None:
    assert by_threshold["tool-agent"][0.05] > 2 * by_threshold["tool-agent"][0.4]
    assert by_threshold["tool-agent"][0.8] > 2 * by_threshold["tool-agent"][0.4]
    assert by_threshold["conversation"][0.4] > 1.05 * by_threshold["conversation"][0.2]
