"""Ties: every policy draws among equals, and each of them is drawn as often as the others."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import Any

import pytest

from cachelb import Router, policies

WORKERS = ["gpu0", "gpu1", "gpu2", "gpu3", "gpu4"]
PROMPT = array("I", range(640))
SEEDS = range(1000)
# Upper points of the chi-square distribution that chance passes once in a thousand, by degrees of freedom.
CRITICAL = {1: 10.83, 4: 18.47}

# Policies that break ties by the request: hashing policies draw by key, `length-bucket` by length.
KEYED = {"rendezvous", "consistent-hash", "prefix-hash", "boundary-learning", "session"}
# These do not look at the prompt, so its holders are no better than others.
BLIND = {"least-loaded", "power-of-two", "round-robin", "random", "queue-over-throughput", "length-bucket"}
PLACING = sorted(set(policies.POLICIES) - KEYED - BLIND)


def chi_square(picks: Counter[str], among: list[str]) -> float:
    expected = picks.total() / len(among)
    return sum((picks[worker] - expected) ** 2 / expected for worker in among)


def even(picks: Counter[str], among: list[str]) -> bool:
    return set(picks) <= set(among) and chi_square(picks, among) < CRITICAL[len(among) - 1]


def build(policy: str, seed: int) -> Router[str]:
    # Registered in another order each time, as a position must not matter.
    turn = seed % len(WORKERS)
    return Router(WORKERS[turn:] + WORKERS[:turn], policy=policy, seed=seed, hash_seed=1, clock=lambda: 100.0)


@pytest.mark.parametrize(
    ("policy", "request_"),
    [(policy, {}) for policy in policies.POLICIES]
    + [(policy, {"tokens": PROMPT}) for policy in policies.POLICIES if policy not in KEYED | {"length-bucket"}],
    ids=lambda value: value if isinstance(value, str) else "prompt" if value else "nothing",
)
def test_idle_workers_are_drawn_evenly(policy: str, request_: dict[str, Any]) -> None:
    picks = Counter(build(policy, seed).select_worker(**request_, by_load=True).key for seed in SEEDS)
    assert even(picks, WORKERS), picks


@pytest.mark.parametrize("policy", PLACING)
def test_equal_holders_are_drawn_evenly(policy: str) -> None:
    holders = ["gpu1", "gpu3"]
    picks: Counter[str] = Counter()
    for seed in SEEDS:
        router = build(policy, seed)
        held = [router.select_worker(tokens=PROMPT, among=[worker]) for worker in holders]
        for decision in held:
            decision.on_complete()
        for worker in WORKERS:  # without a report, `least-expected-wait` counts requests only
            router.load_sink.update_load(worker, queued_tokens=0)
        picks[router.select_worker(tokens=PROMPT).key] += 1
    assert even(picks, holders), picks


@pytest.mark.parametrize("policy", sorted(KEYED))
def test_sessions_are_drawn_evenly(policy: str) -> None:
    router = Router(WORKERS, policy=policy, seed=1, hash_seed=1)
    picks = Counter(router.select_worker(session=f"chat-{n}", dry_run=True, by_load=True).key for n in range(2000))
    # A ring's arcs differ by design, of 150 points each by 8 %.
    if policy in {"consistent-hash", "prefix-hash", "boundary-learning"}:
        assert min(picks.values()) > 0.7 * 400, picks
    else:
        assert even(picks, WORKERS), picks
