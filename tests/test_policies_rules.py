"""What each rule picks: the cases of the rules' definitions and the mistakes of other routers."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from typing import Any, Literal

import pytest

import cachelb
from cachelb import policies
from cachelb.policies import CacheAware, Random, Rendezvous, RoundRobin

PROMPT = array("I", range(160))


def book(policy: policies.BuiltinPolicy, loads: dict[str, int]) -> list[cachelb.Decision[str]]:
    """Open `loads[w]` requests on each worker, without tokens, so that no block is recorded."""
    return [policy.select_worker([worker]) for worker, count in loads.items() for _ in range(count)]


def hold(policy: CacheAware, worker: str, tokens: array[int] = PROMPT) -> None:
    """Let `worker` hold `tokens`."""
    policy.select_worker([worker], tokens=tokens).on_complete()


# === CacheAware ===


@pytest.mark.parametrize(("matched", "reason"), [(3, "prefix"), (2, "cold")])
def test_the_threshold_is_inclusive(matched: int, reason: str) -> None:
    policy = CacheAware(seed=1, cache_threshold=0.3)
    hold(policy, "w1", PROMPT[: matched * 16])
    decision = policy.select_worker(["w1", "w2"], tokens=PROMPT)
    assert decision.reason == reason
    assert decision.key == ("w1" if reason == "prefix" else "w2")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [({"tokens": PROMPT[:10]}, "short-prompt"), ({"tokens": []}, "short-prompt"), ({}, "no-key")],
    ids=["10 tokens", "0 tokens", "no tokens"],
)
def test_nothing_to_match_goes_to_the_least_loaded(arguments: dict[str, Any], reason: str) -> None:
    policy = CacheAware(seed=1)
    held = book(policy, {"w1": 1})
    decision = policy.select_worker(["w1", "w2"], **arguments)
    assert (decision.key, decision.reason) == ("w2", reason)
    assert len(held) == 1


def test_a_removed_holder_leaves_a_cold_prompt_that_is_recorded_elsewhere() -> None:
    policy = CacheAware(seed=1)
    hold(policy, "w1")
    policy.remove_worker("w1")
    moved = policy.select_worker(["w2", "w3"], tokens=PROMPT)
    assert moved.reason == "cold"
    assert policy.block_count(moved.key) == 10
    assert policy.select_worker(["w2", "w3"], tokens=PROMPT).key == moved.key


def test_an_unready_holder_is_replaced_and_keeps_its_blocks() -> None:
    policy = CacheAware(seed=1)
    hold(policy, "w1")
    policy.set_ready("w1", False)
    held = book(policy, {"w2": 1})
    moved = policy.select_worker(["w1", "w2", "w3"], tokens=PROMPT)
    assert (moved.key, moved.reason) == ("w3", "cold")
    assert policy.block_count("w3") == 10
    policy.set_ready("w1", True)
    assert policy.select_worker(["w1", "w2", "w3"], tokens=PROMPT).key == "w1"
    assert len(held) == 1


def test_a_holder_outside_the_list_does_not_hide_the_next_one() -> None:
    policy = CacheAware(seed=1)
    hold(policy, "gone")
    hold(policy, "w2", PROMPT[:144])
    decision = policy.select_worker(["w1", "w2", "w3"], tokens=PROMPT)
    assert (decision.key, decision.reason, decision.best_matched_tokens) == ("w2", "prefix", 144)


def test_unique_prompts_one_at_a_time_spread_exactly_evenly() -> None:
    policy = CacheAware(seed=1)
    picks: Counter[str] = Counter()
    for i in range(400):
        decision = policy.select_worker(["a", "b", "c", "d"], tokens=array("I", [i] * 32))
        picks[decision.key] += 1
        decision.on_complete()
    assert picks == {"a": 100, "b": 100, "c": 100, "d": 100}


@pytest.mark.parametrize(
    ("loads", "options", "expected"),
    [
        ({"w1": 100}, {"load_factor": 1.1, "balance_abs_threshold": 32}, "spill"),
        ({"w1": 10}, {"load_factor": 1.1, "balance_abs_threshold": 32}, "prefix"),
        ({"w1": 10}, {"load_factor": 1.1, "balance_abs_threshold": 2}, "spill"),
        ({"w1": 10}, {}, "spill"),
        ({"w2": 50}, {}, "prefix"),
        ({"w2": 50}, {"load_factor": 1.1, "balance_abs_threshold": 0}, "prefix"),
        ({}, {}, "prefix"),
        ({"w1": 1}, {}, "prefix"),
    ],
)
def test_only_the_holders_own_load_over_both_margins_spills(
    loads: dict[str, int], options: dict[str, Any], expected: str
) -> None:
    policy = CacheAware(seed=1, **options)
    hold(policy, "w1")
    held = book(policy, loads)
    decision = policy.select_worker(["w1", "w2"], tokens=PROMPT)
    assert decision.reason == expected
    assert decision.key == ("w2" if expected == "spill" else "w1")
    if expected == "spill":
        assert policy.block_count("w2") == 10, "the new holder is recorded"
    assert len(held) == sum(loads.values())


def test_a_burst_of_one_prompt_grows_holders_one_by_one() -> None:
    policy = CacheAware(seed=1)
    decisions = [policy.select_worker(["a", "b", "c", "d"], tokens=PROMPT) for _ in range(8)]
    assert sorted(policy.loads().values()) == [0, 0, 2, 6]
    assert [decision.reason for decision in decisions] == ["cold"] + ["prefix"] * 5 + ["spill", "prefix"]


def test_many_matched_tokens_beat_their_small_share() -> None:
    long = array("I", range(48_000))
    by_share, by_tokens = CacheAware(seed=1), CacheAware(seed=1, min_matched_tokens=10_000)
    for policy, reason in ((by_share, "cold"), (by_tokens, "prefix")):
        hold(policy, "w1", long[:12_000])
        assert policy.select_worker(["w1", "w2"], tokens=long).reason == reason


def test_the_last_token_is_never_counted_as_cached() -> None:
    policy = CacheAware(seed=1)
    hold(policy, "w1", PROMPT[:32])
    assert policy.select_worker(["w1", "w2"], tokens=PROMPT[:32]).matched_tokens == 16
    assert policy.select_worker(["w1", "w2"], tokens=PROMPT[:33]).matched_tokens == 32


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
@pytest.mark.parametrize("column", ["kv_usage", "queued_tokens", "prefill_tps"])
def test_reports_that_no_rule_could_use_are_refused(column: str, value: float) -> None:
    policy = CacheAware()
    with pytest.raises(ValueError, match=column):
        policy.update_load("w1", **{column: value})


def test_blocks_a_failed_request_shares_with_a_later_one_stay() -> None:
    policy = CacheAware(seed=1)
    failed = policy.select_worker(["w1"], tokens=PROMPT)
    alive = policy.select_worker(["w1"], tokens=PROMPT[:64])
    failed.on_error(500)
    assert policy.block_count("w1") == 4
    alive.on_error(500)
    assert policy.block_count("w1") == 0, "its last owner is gone"


def test_blocks_are_matched_like_the_tokens_they_come_from() -> None:
    hashes = [int(h) for h in cachelb.hash_blocks(PROMPT)]
    policy = CacheAware(seed=1)
    hold(policy, "w1")
    for given in (hashes, array("Q", hashes), array("Q", hashes).tobytes(), cachelb.hash_blocks(PROMPT)):
        decision = policy.select_worker(["w1", "w2"], blocks=given, prompt_tokens=165, dry_run=True)
        assert (decision.key, decision.matched_tokens, decision.prompt_tokens) == ("w1", 160, 165)
    assert policy.select_worker(["w1", "w2"], blocks=hashes, dry_run=True).prompt_tokens == 160


def test_arbitrary_block_hashes_never_break_the_index() -> None:
    policy = CacheAware(seed=1, max_blocks_per_worker=8)
    rng = random.Random(4)
    for _ in range(500):
        blocks = [rng.randrange(6) for _ in range(rng.randrange(8))]
        policy.select_worker(["w1", "w2"], blocks=blocks).on_error(rng.choice([500, 404]))
        policy.select_worker(["w1", "w2"], blocks=blocks).on_complete()
    policy.validate()


@pytest.mark.parametrize(("hashing", "matched"), [("positional", 64), ("chained", 16)])
def test_only_chained_hashes_know_what_came_before(hashing: Literal["chained", "positional"], matched: int) -> None:
    def prompt(*blocks: int) -> array[int]:
        return array("I", [token for block in blocks for token in [block] * 16])

    policy = CacheAware(seed=1, hashing=hashing, cache_threshold=0.1)
    hold(policy, "w1", prompt(1, 2, 3, 4))
    hold(policy, "w1", prompt(5, 9, 6, 7))
    decision = policy.select_worker(["w1", "w2"], tokens=prompt(1, 9, 3, 4, 8))
    assert (decision.key, decision.matched_tokens) == ("w1", matched)
    policy.validate()


def test_the_cap_keeps_the_first_blocks_of_a_long_prompt() -> None:
    policy = CacheAware(seed=1, max_blocks_per_worker=4)
    hold(policy, "w1")
    assert policy.block_count("w1") == policy.block_count() == 4
    assert policy.select_worker(["w1", "w2"], tokens=PROMPT).matched_tokens == 64


@pytest.mark.parametrize("matcher", ["kary", "binary", "linear"])
def test_every_matcher_picks_the_same(matcher: Literal["kary", "binary", "linear"]) -> None:
    policy, reference = CacheAware(seed=1, matcher=matcher), CacheAware(seed=1)
    for i in range(200):
        tokens = array("I", range(i % 5, 16 * (1 + i % 40)))
        ours, theirs = (p.select_worker(["a", "b", "c"], tokens=tokens) for p in (policy, reference))
        assert (ours.key, ours.reason, ours.matched_tokens) == (theirs.key, theirs.reason, theirs.matched_tokens)


# === load, hash and turn policies ===


def owners(workers: list[str], seed: int = 1337) -> list[str]:
    policy = Rendezvous(seed=seed)
    return [policy.select_worker(workers, session=f"chat-{i}", dry_run=True).key for i in range(300)]


def test_rendezvous_agrees_with_routers_of_every_release() -> None:
    assert "".join(owners(["a", "b", "c"])[:24]) == "bcbcbbaabcbcbaabbcbbccca"


def test_a_prompt_without_session_is_keyed_by_its_leading_blocks() -> None:
    policy = Rendezvous()
    workers = [f"gpu{i}" for i in range(16)]
    head = array("I", range(256))
    same = {policy.select_worker(workers, tokens=head + array("I", [i] * i)).key for i in range(50)}
    other = {policy.select_worker(workers, tokens=array("I", [i]) + head).key for i in range(50)}
    assert len(same) == 1
    assert len(other) > 8
    assert policy.select_worker(workers, tokens=head[:15]).reason == "no-key"
    assert policy.select_worker(workers, session="", tokens=head).reason == "hash"


def test_round_robin_follows_workers_not_positions() -> None:
    policy = RoundRobin(start="first")
    policy.set_ready("a", True)
    policy.set_ready("b", False)
    assert [policy.select_worker(["a", "b", "c"]).key for _ in range(4)] == ["a", "c", "a", "c"]
    policy.set_ready("b", True)
    assert [policy.select_worker(["c", "b", "a"]).key for _ in range(3)] == ["a", "b", "c"]


def test_weighted_turns_are_smooth() -> None:
    policy = RoundRobin(start="first")
    policy.set_weight("a", 5)
    assert "".join(policy.select_worker(["a", "b", "c"]).key for _ in range(14)) == "aabacaa" * 2


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf")])
def test_weights_that_cannot_divide_are_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="weight"):
        Random().set_weight("a", weight)


@pytest.mark.parametrize("name", sorted(policies.POLICIES))
def test_health_and_metrics_reads_change_no_load(name: str) -> None:
    policy = policies.make(name, seed=1)
    decision = policy.select_worker(["a", "b"], tokens=PROMPT)
    before = (policy.loads(), policy.block_count(), policy.stats())
    policy.set_ready("a", False)
    policy.set_ready("a", True)
    policy.update_load("a", kv_usage=0.5, queued_tokens=3)
    assert policy.memory_bytes > 0
    policy.validate()
    assert (policy.loads(), policy.block_count(), policy.stats()) == before
    decision.on_complete()
