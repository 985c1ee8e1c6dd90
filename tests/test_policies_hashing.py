"""Policies that divide requests by a key or a length: their options, and what each does through Python."""

from __future__ import annotations

from array import array

import cachelb
from cachelb import policies
from cachelb.policies import PrefixHash

WORKERS = ["gpu0", "gpu1", "gpu2", "gpu3"]


def prompt(head: int, length: int) -> array[int]:
    """Make `length` tokens whose first says which conversation they belong to."""
    return array("I", [head, *range(1, length)])


def test_prompts_that_begin_alike_go_together() -> None:
    policy = PrefixHash()
    heads = [{policy.select_worker(WORKERS, tokens=prompt(head, 300 + n)).key for n in range(3)} for head in range(8)]
    assert {len(workers) for workers in heads} == {1}
    assert len(set.union(*heads)) > 1
    assert policy.select_worker(WORKERS, tokens=range(15)).reason == "no-key"
    assert policy.select_worker(WORKERS, tokens=range(100)).reason == "hash"


def test_boundaries_tell_prompts_apart_beyond_a_shared_system_prompt() -> None:
    workers = [f"gpu{i}" for i in range(16)]
    system = array("I", range(512))
    chats = [system + prompt(head, 1000) for head in range(30)]
    plain, bounded = PrefixHash(), PrefixHash(cache_boundaries=(1024, 512))

    def used(policy: policies.BuiltinPolicy, length: int) -> int:
        return len({policy.select_worker(workers, tokens=chat[:length], dry_run=True).key for chat in chats})

    assert used(plain, 1500) == 1
    assert used(bounded, 1500) > 8, "1,024 tokens"
    assert used(bounded, 1023) == 1, "512 tokens"
    assert used(bounded, 511) == 1, "the head"
    blocks = cachelb.hash_blocks(chats[0])
    by_tokens = bounded.select_worker(workers, tokens=chats[0], dry_run=True)
    assert bounded.select_worker(workers, blocks=blocks, dry_run=True).key == by_tokens.key
    assert bounded.select_worker(workers, tokens=chats[0], session="chat-1", dry_run=True).reason == "hash"


# === length-bucket ===
