"""Policies that compare prompts beyond whole blocks."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from tests.routers import flat_router

from cachelb import Router, policies
from cachelb.index import hash_blocks
from cachelb.policies import CacheAware

SHARED = [7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
TEXT = "The five boxing wizards jump quickly over the lazy dog. "


def radix(**options: Any) -> Router[str]:
    return flat_router(["gpu0", "gpu1"], options, seed=1, hash_seed=1, policy="cache-aware", index="radix")


def known(router: Router[str], **request: Any) -> int:
    return router.select_worker(**request, dry_run=True).best_matched_tokens


# === index="radix" ===


def test_ten_shared_tokens_match() -> None:
    router = radix()
    first = router.select_worker(tokens=[*SHARED, *range(100, 110)])
    first.on_complete()
    again = router.select_worker(tokens=[*SHARED, *range(200, 210)])
    assert (again.worker, again.reason, again.matched_tokens) == (first.worker, "prefix", 10)
    assert again.explain().candidates[0].overlap_blocks + again.explain().candidates[1].overlap_blocks == 10
    assert known(Router(["gpu0"], seed=1), tokens=[*SHARED, 1]) == 0


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_pages_match_whole(page_size: int) -> None:
    router = radix(page_size=page_size)
    router.select_worker(tokens=range(30)).on_complete()
    matched = known(router, tokens=[*range(25), *range(500, 540)])
    assert matched == 25 // page_size * page_size
    router.validate()


def test_an_image_matters_from_where_it_begins() -> None:
    router = radix()
    router.select_worker(tokens=range(64), mm=[(5, 20, 10)]).on_complete()
    assert known(router, tokens=range(64), mm=[(6, 20, 10)]) == 20
    assert known(router, tokens=range(64), mm=[(5, 20, 10)]) == 63


def test_hashes_are_refused_by_a_tree_of_tokens() -> None:
    with pytest.raises(ValueError, match='index="radix" compares tokens'):
        radix().select_worker(blocks=hash_blocks(range(64)))


def test_a_tree_keeps_within_its_capacity_and_the_memory_of_the_router() -> None:
    policy = policies.CacheAware(index="radix", max_blocks_per_worker=100, seed=1)
    for start in range(0, 5000, 50):
        policy.select_worker(["gpu0"], tokens=range(start, start + 60)).on_complete()
        assert policy.block_count("gpu0") <= 100
    policy.validate()
    router = Router([f"gpu{i}" for i in range(4)], policy=CacheAware(index="radix"), max_memory_mb=1, seed=1)
    for start in range(0, 400_000, 1000):
        router.select_worker(tokens=range(start, start + 1000)).on_complete()
    assert router.stats().index_bytes <= 1 << 20
    assert known(router, tokens=range(399_000, 400_000)) > 900, "the latest is there"
    router.validate()


def test_a_worker_that_is_reset_or_removed_leaves_the_tree() -> None:
    router = radix()
    router.select_worker(tokens=range(50), among=["gpu0"]).on_complete()
    router.load_sink.reset_cache("gpu0")
    assert known(router, tokens=range(50)) == 0
    router.select_worker(tokens=range(50), among=["gpu0"]).on_complete()
    router.remove_worker("gpu0")
    assert known(router, tokens=range(50)) == 0
    router.validate()


# === prefix-affinity ===


def affinity(**options: Any) -> Router[str]:
    return flat_router(["gpu0", "gpu1", "gpu2"], options, seed=1, hash_seed=1, policy="prefix-affinity")


def test_messages_tokens_and_salts_are_their_own() -> None:
    router = affinity()
    chat = [{"role": "system", "content": TEXT}, {"role": "user", "content": "one"}]
    first = router.select_worker(messages=chat)
    first.on_complete()
    other = router.select_worker(messages=[chat[0], {"role": "user", "content": "two"}])
    assert (other.worker, other.reason) == (first.worker, "prefix")
    other.on_complete()
    assert router.select_worker(messages=chat, cache_salt="s", dry_run=True).reason == "cold"
    tokens = router.select_worker(tokens=array("I", range(40)))
    assert tokens.reason == "cold"
    assert router.select_worker(tokens=[*range(9), *range(70, 90)]).worker == tokens.worker


def test_half_of_a_surrogate_pair_is_a_prompt() -> None:
    router = affinity()
    first = router.select_worker(text="abc\ud83d" * 10)
    first.on_complete()
    assert router.select_worker(text="abc\ud83d" * 10).worker == first.worker


def test_a_shared_beginning_does_not_make_one_worker_the_fleet_unless_asked_for() -> None:
    def share(**options: Any) -> int:
        router = flat_router([f"gpu{i}" for i in range(8)], options, seed=1, hash_seed=1, policy="prefix-affinity")
        running, picks = [], dict.fromkeys((f"gpu{i}" for i in range(8)), 0)
        for number in range(800):
            running.append(router.select_worker(text=TEXT * 4 + f"{number:06}" * 300))
            picks[running[-1].worker] += 1
            if len(running) > 64:
                running.pop(0).on_complete()
        return max(picks.values())

    assert share() <= 200
    assert share(compat="ray", eviction_target_chars=500_000, do_eviction=False) == 800
