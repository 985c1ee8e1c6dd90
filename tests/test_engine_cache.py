"""Engine caches against a leaf-LRU cache written block by block."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelb.sim.engine_cache import EngineCaches, engine_blocks
from cachelb.sim.lru_bound import ReuseProfile
from cachelb.sim.traces import Request

BLOCK = 2


class ModelCache:
    """Keeps whole prefixes as keys; the first block of a prompt is its most recent one."""

    def __init__(self, max_blocks: int) -> None:
        self.max_blocks = max_blocks
        self.blocks: OrderedDict[tuple[int, ...], None] = OrderedDict()

    def serve(self, tokens: list[int]) -> int:
        path = [tuple(tokens[:end]) for end in range(BLOCK, len(tokens) + 1, BLOCK)]
        cached = sum(block in self.blocks for block in path)
        for block in reversed(path):
            self.blocks[block] = None
            self.blocks.move_to_end(block)
        while len(self.blocks) > self.max_blocks:
            self.blocks.popitem(last=False)
        return cached


prompts = st.lists(st.integers(0, 2), max_size=13)
requests = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), prompts), max_size=40)


@given(requests, st.integers(1, 8))
def test_caches_equal_a_leaf_lru_model(served: list[tuple[str, list[int]]], max_blocks: int) -> None:
    caches = EngineCaches(["a", "b", "c"], kv_tokens=max_blocks * BLOCK, block_size=BLOCK)
    models = {worker: ModelCache(max_blocks) for worker in "abc"}
    for worker, tokens in served:
        assert caches.serve(worker, np.array(tokens, dtype=np.uint32)) == models[worker].serve(tokens)
        for name, model in models.items():
            assert caches.block_count(name) == len(model.blocks)


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), max_size=30), st.integers(1, 8))
def test_one_cache_reaches_the_single_pool_bound_exactly(served: list[list[int]], max_blocks: int) -> None:
    caches = EngineCaches(["pool"], kv_tokens=max_blocks, block_size=1)
    hits = sum(caches.serve("pool", np.array(tokens, dtype=np.uint32)) for tokens in served)
    rows = [Request(0.0, len(tokens), 1, tuple(tokens)) for tokens in served]
    assert hits == ReuseProfile(rows, id_tokens=1, block_size=1).hits(max_blocks).hit_blocks


def test_prompt_longer_than_the_cache_keeps_its_first_blocks() -> None:
    caches = EngineCaches(["a"], kv_tokens=6, block_size=BLOCK)
    prompt = np.arange(20, dtype=np.uint32)
    assert [caches.serve("a", prompt), caches.serve("a", prompt), caches.block_count("a")] == [0, 3, 3]


def test_partial_block_is_not_cached() -> None:
    caches = EngineCaches(["a"], kv_tokens=8, block_size=4)
    assert [caches.serve("a", np.arange(7, dtype=np.uint32)) for _ in range(2)] == [0, 1]


def test_unknown_worker_is_an_error() -> None:
    with pytest.raises(KeyError):
        EngineCaches(["a"], kv_tokens=8, block_size=4).serve("b", np.arange(7, dtype=np.uint32))


@pytest.mark.parametrize(("kv_tokens", "block_size"), [(0, 1), (15, 16), (-5, 1), (16, 0)])
def test_cache_without_a_block_is_refused(kv_tokens: int, block_size: int) -> None:
    with pytest.raises(ValueError, match=f"kv_tokens {kv_tokens} holds no block of {block_size} tokens"):
        engine_blocks(kv_tokens, block_size)
