"""Policies that weigh cached prefixes against load: what each picks."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import Any

import pytest

import cachelb
from cachelb import policies
from cachelb.policies import (
    QueueOverThroughput,
)

PROMPT = array("I", range(1600))
A100_8B = (4.209989e-7, 1.518344e-2, 16.50142)  # milliseconds: DynoSim's polynomial
PAIR = ["w1", "w2"]

COST = [
    "adaptive",
    "estimated-ttft",
    "exploit-explore",
    "kv-aware",
    "least-expected-wait",
    "overlap-cost",
    "prefill-times-batch",
    "prefix-cache",
    "prefix-cache-and-load",
    "queue-over-throughput",
    "sticky-until-saturated",
]
PLACING = [name for name in COST if name != "queue-over-throughput"]


def still() -> float:
    """Return a time at which nothing moves."""
    return 100.0


def hold(policy: policies.BuiltinPolicy, worker: str, tokens: array[int] = PROMPT) -> None:
    """Let `worker` hold `tokens`."""
    policy.select_worker([worker], tokens=tokens).on_complete()


def decoding(policy: policies.BuiltinPolicy, worker: str, count: int) -> list[cachelb.Decision[str]]:
    """Open `count` requests on `worker` that are past their first token and hold no block."""
    held = [policy.select_worker([worker], by_load=True) for _ in range(count)]
    for decision in held:
        decision.on_first_token()
    return held


def picked(policy: policies.BuiltinPolicy, tokens: array[int] | None = PROMPT) -> tuple[str, str]:
    """Return where the next request would go, and why."""
    decision = policy.select_worker(PAIR, tokens=tokens, dry_run=True)
    return decision.key, decision.reason


# === what they have in common ===


@pytest.mark.parametrize("name", PLACING)
def test_a_placement_is_known_to_the_next_request(name: str) -> None:
    policy = policies.make(name, seed=1, clock=still)
    first = policy.select_worker(PAIR, tokens=PROMPT)
    assert (first.matched_tokens, policy.block_count(first.key)) == (0, 100)
    first.on_complete()
    again = policy.select_worker(PAIR, tokens=PROMPT, dry_run=True)
    assert again.best_matched_tokens == 1584
    if name != "least-expected-wait":
        assert again.key == first.key


@pytest.mark.parametrize("name", PLACING)
def test_placements_age_out_and_are_bounded(name: str) -> None:
    now = [0.0]
    policy = policies.make(name, seed=1, clock=lambda: now[0], max_blocks_per_worker=10, ttl_s=60)
    hold(policy, "w1")
    assert policy.block_count() == 10
    now[0] = 61.0
    policy.select_worker(PAIR, by_load=True)
    assert policy.block_count() == 0


@pytest.mark.parametrize("name", PLACING)
def test_the_hash_seed_decides_which_blocks_match(name: str) -> None:
    policy = policies.make(name, seed=1, hash_seed=7)
    hold(policy, "w1")
    for seed, matched in ((7, 1584), (1337, 0)):  # a list: an array of another seed is refused
        blocks = cachelb.index.hash_blocks(PROMPT, seed=seed)
        decision = policy.select_worker(PAIR, blocks=blocks.tolist(), dry_run=True)
        assert decision.best_matched_tokens == matched


# `prefix-cache` has no load term. To `prefill-times-batch` 64 new tokens beside 64 requests cost less than 4,160 alone,
# and so they do to Dynamo's cost, which counts the system prompt of all those requests once.
@pytest.mark.parametrize(
    ("name", "first_token"),
    [(name, False) for name in PLACING if name not in {"prefix-cache", "overlap-cost"}]
    + [(name, True) for name in PLACING if name not in {"prefix-cache", "overlap-cost", "prefill-times-batch"}],
)
def test_a_shared_system_prompt_does_not_make_one_worker_the_fleet(name: str, first_token: bool) -> None:
    policy = policies.make(name, seed=1, clock=still)
    workers = [f"gpu{i}" for i in range(8)]
    system = array("I", range(4096))
    picks: Counter[str] = Counter()
    running: list[cachelb.Decision[str]] = []
    for i in range(2000):
        decision = policy.select_worker(workers, tokens=system + array("I", [10_000 + i] * 64))
        running.append(decision)
        if first_token:
            decision.on_first_token()
        picks[decision.key] += 1
        if len(running) > 64:
            running.pop(0).on_complete()
    assert max(picks.values()) <= 500, picks


@pytest.mark.parametrize("name", COST)
def test_weight_attracts_requests(name: str) -> None:
    policy = policies.make(name, seed=1, clock=still)
    policy.set_weight("heavy", 3.0)
    held = [policy.select_worker(["light", "heavy"], tokens=array("I", [i] * 64)) for i in range(80)]
    share = Counter(decision.key for decision in held)["heavy"]
    # The product of work and batch divides by weight once: its balance lies at the square root of the ratio.
    low = 48 if name == "prefill-times-batch" else 55
    assert low <= share <= 65, share


# === one by one ===


@pytest.mark.parametrize(
    ("name", "options", "matched", "busy", "expected"),
    [
        ("cache-aware", {"cache_threshold": 0.5}, 800, (0, 0), ("w1", "prefix")),
        ("cache-aware", {"cache_threshold": 0.51}, 800, (0, 0), ("w2", "cold")),
        ("cache-aware", {"cache_threshold": 0.51, "min_matched_tokens": 800}, 800, (0, 0), ("w1", "prefix")),
        ("cache-aware", {}, 1600, (10, 0), ("w2", "spill")),
        ("cache-aware", {"load_factor": 1.1, "balance_abs_threshold": 32}, 1600, (10, 0), ("w1", "prefix")),
        ("prefix-cache", {"tau": 0.5}, 800, (9, 0), ("w2", "cold")),
        ("prefix-cache", {"tau": 0.49}, 800, (9, 0), ("w1", "prefix")),
        ("prefix-cache", {"gate": False}, 1600, (100, 0), ("w1", "prefix")),
        ("prefix-cache", {"gate": True}, 1600, (100, 0), ("w2", "spill")),
        ("prefix-cache-and-load", {"scope": "fleet"}, 1600, (0, 8), ("w1", "prefix")),
        ("prefix-cache-and-load", {"scope": "fleet"}, 1600, (0, 9), ("w1", "imbalance")),
        ("prefix-cache-and-load", {"scope": "fleet"}, 1600, (9, 0), ("w2", "imbalance")),
        ("prefix-cache-and-load", {"scope": "candidate"}, 1600, (0, 9), ("w1", "prefix")),
        ("prefix-cache-and-load", {"scope": "candidate"}, 1600, (9, 0), ("w2", "spill")),
        ("prefill-times-batch", {}, 1600, (98, 0), ("w1", "prefix")),
        ("prefill-times-batch", {}, 1600, (100, 0), ("w2", "spill")),
        ("kv-aware", {}, 1600, (5, 0), ("w1", "prefix")),
        ("kv-aware", {}, 1600, (100, 0), ("w2", "spill")),
        ("kv-aware", {"scoring": "cost"}, 1600, (98, 0), ("w1", "prefix")),
        ("kv-aware", {"scoring": "cost"}, 1600, (100, 0), ("w2", "spill")),
        ("sticky-until-saturated", {}, 800, (1, 0), ("w2", "cold")),
        ("sticky-until-saturated", {"min_matched_tokens": 700}, 800, (1, 0), ("w1", "sticky")),
        ("sticky-until-saturated", {"affinity_threshold": 0.5}, 800, (1, 0), ("w1", "sticky")),
        ("least-expected-wait", {}, 0, (2, 1), ("w2", "least-loaded")),
        ("estimated-ttft", {"ttft_slo_ms": 5.0, "prefill": A100_8B}, 0, (0, 0), ("w2", "slo-unattainable")),
        ("estimated-ttft", {"ttft_slo_ms": 1e6, "prefill": A100_8B}, 0, (0, 0), ("w2", "cold")),
    ],
)
def test_options_reach_the_rule(
    name: str, options: dict[str, Any], matched: int, busy: tuple[int, int], expected: tuple[str, str]
) -> None:
    policy = policies.make(name, seed=1, clock=still, **options)
    hold(policy, "w1", PROMPT[:matched])
    held = [decoding(policy, worker, count) for worker, count in zip(PAIR, busy, strict=True)]
    assert picked(policy) == expected
    assert tuple(map(len, held)) == busy


def test_queue_over_throughput_takes_one_number_or_one_by_worker() -> None:
    held = []
    for throughput, expected in ((5, "w1"), ({"w1": 1.0, "w2": 4.0}, "w2"), ({"w1": 1.0}, "w1"), ({}, "w1")):
        policy = QueueOverThroughput(throughput=throughput, seed=1)
        held += decoding(policy, "w2", 2)
        assert picked(policy) == (expected, "least-loaded"), throughput
