"""Picks of each rule: the cases of the rules' definitions and the mistakes of other routers."""

from __future__ import annotations

from array import array

import pytest

import cachelb
from cachelb import policies
from cachelb.policies import CacheAware, Random, Rendezvous

PROMPT = array("I", range(160))


def hold(policy: CacheAware, worker: str, tokens: array[int] = PROMPT) -> None:
    """Let `worker` hold `tokens`."""
    policy.select_worker([worker], tokens=tokens).on_complete()


# === CacheAware ===


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
@pytest.mark.parametrize("column", ["kv_usage", "queued_tokens", "prefill_tps"])
def test_reports_that_no_rule_could_use_are_refused(column: str, value: float) -> None:
    policy = CacheAware()
    with pytest.raises(ValueError, match=column):
        policy.update_load("w1", **{column: value})


def test_blocks_are_matched_like_the_tokens_they_come_from() -> None:
    hashes = [int(h) for h in cachelb.index.hash_blocks(PROMPT)]
    policy = CacheAware(seed=1)
    hold(policy, "w1")
    for given in (hashes, array("Q", hashes), array("Q", hashes).tobytes(), cachelb.index.hash_blocks(PROMPT)):
        decision = policy.select_worker(["w1", "w2"], blocks=given, prompt_tokens=165, dry_run=True)
        assert (decision.key, decision.matched_tokens, decision.prompt_tokens) == ("w1", 160, 165)
    assert policy.select_worker(["w1", "w2"], blocks=hashes, dry_run=True).prompt_tokens == 160


# === load, hash and turn policies ===


def owners(workers: list[str], seed: int = 1337) -> list[str]:
    policy = Rendezvous(seed=seed)
    return [policy.select_worker(workers, session=f"chat-{i}", dry_run=True, by_load=True).key for i in range(300)]


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
    assert policy.memory_bytes >= 0
    policy.validate()
    assert (policy.loads(), policy.block_count(), policy.stats()) == before
    decision.on_complete()
