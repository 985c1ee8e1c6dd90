"""The single-pool LRU bound: against a cache simulated block by block, and on the real trace."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models.reuse_profile import ReuseProfile

from cachelb.sim.lru_bound import HitCount, PoolProfile
from cachelb.sim.traces import Request, read_trace
from cachelb.sim.workloads import WORKLOADS, Workload, build, read_mooncake
from cachelb.sim.workloads.workload import make

ID_TOKENS = 4
Block = tuple[int, ...]


def blocks_of(row: Request, block_size: int, *, partial_tail: bool) -> list[tuple[Block, int]]:
    """Each block as (the whole prefix it ends, its tokens)."""
    blocks, start = [], 0
    while start < row.prompt_tokens:
        tokens = min(block_size, row.prompt_tokens - start)
        if tokens == block_size or partial_tail:
            ids = row.hash_ids[: start // ID_TOKENS + 1]
            blocks.append(((*ids, start % ID_TOKENS, tokens), tokens))
        start += block_size
    return blocks


def simulate(rows: list[Request], capacity: int, block_size: int, *, partial_tail: bool, leaf: bool) -> HitCount:
    """Count the hits of one LRU pool, block by block."""
    pool: OrderedDict[Block, None] = OrderedDict()
    blocks = hit_blocks = hit_tokens = 0

    def use(block: Block) -> None:
        pool[block] = None
        pool.move_to_end(block)

    for row in rows:
        path = blocks_of(row, block_size, partial_tail=partial_tail)
        for block, tokens in path:
            blocks += 1
            hit_blocks += block in pool
            hit_tokens += tokens * (block in pool)
            if not leaf:
                use(block)
                while len(pool) > capacity:
                    pool.popitem(last=False)
        if leaf:
            for block, _ in reversed(path):
                use(block)
            while len(pool) > capacity:
                pool.popitem(last=False)
    return HitCount(blocks, hit_blocks, sum(row.prompt_tokens for row in rows), hit_tokens)


@st.composite
def traces(draw: st.DrawFn) -> list[Request]:
    """Rows over a small tree of chained ids, where an id always stands for the same tokens."""
    tails: dict[int, int] = {}
    rows = []
    for _ in range(draw(st.integers(0, 12))):
        ids, node = [], 1
        for _ in range(draw(st.integers(1, 4))):
            node = node * 2 + draw(st.integers(0, 1))
            ids.append(node)
        # A tail gets an id of its own length, as a hash of its content would.
        tail = tails.setdefault(node, draw(st.integers(1, ID_TOKENS)))
        if tail < ID_TOKENS:
            ids[-1] = node + 10_000
        rows.append(Request(0.0, (len(ids) - 1) * ID_TOKENS + tail, 1, tuple(ids)))
    return rows


@given(rows=traces(), capacity=st.integers(0, 30), block_size=st.sampled_from([1, 2, 4]), partial_tail=st.booleans())
def test_bound_equals_a_pool_simulated_block_by_block(
    *, rows: list[Request], capacity: int, block_size: int, partial_tail: bool
) -> None:
    profile = ReuseProfile(rows, id_tokens=ID_TOKENS, block_size=block_size, partial_tail=partial_tail)
    assert profile.hits(capacity) == simulate(rows, capacity, block_size, partial_tail=partial_tail, leaf=True)


@given(rows=traces(), capacity=st.integers(0, 12), partial_tail=st.booleans())
def test_sequential_order_equals_the_textbook_pool(*, rows: list[Request], capacity: int, partial_tail: bool) -> None:
    profile = ReuseProfile(
        rows, id_tokens=ID_TOKENS, block_size=ID_TOKENS, partial_tail=partial_tail, order="sequential"
    )
    assert profile.hits(capacity) == simulate(rows, capacity, ID_TOKENS, partial_tail=partial_tail, leaf=False)


@given(traces(), st.integers(0, 30))
def test_more_capacity_never_loses_a_hit(rows: list[Request], capacity: int) -> None:
    profile = ReuseProfile(rows, id_tokens=ID_TOKENS, block_size=1)
    assert profile.hits(capacity).hit_blocks <= profile.hits(capacity + 1).hit_blocks <= profile.hits().hit_blocks


def test_id_behind_another_prefix_is_another_block() -> None:
    rows = [Request(0.0, 2, 1, (1, 9)), Request(0.0, 2, 1, (2, 9))]
    assert ReuseProfile(rows, id_tokens=1, block_size=1).hits().hit_blocks == 0


def test_prompt_longer_than_the_pool_keeps_its_first_blocks() -> None:
    rows = [Request(0.0, 5, 1, (1, 2, 3, 4, 5))] * 2
    assert ReuseProfile(rows, id_tokens=1, block_size=1).hits(3).hit_blocks == 3
    assert ReuseProfile(rows, id_tokens=1, block_size=1, order="sequential").hits(3).hit_blocks == 0


def test_empty_trace_has_rate_zero() -> None:
    hits = ReuseProfile([], id_tokens=16, block_size=16).hits(8)
    assert (hits.block_rate, hits.token_rate) == (0.0, 0.0)


def test_negative_capacity_is_refused() -> None:
    with pytest.raises(ValueError, match="capacity must be at least 0, got -1"):
        ReuseProfile([], id_tokens=4, block_size=4).hits(-1)


# === workloads ===

SIZE = 4


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Rows over a small tree of chained hashes; some answers are known and go on where the prompt ends."""
    prompts: list[int] = []
    outputs: list[int] = []
    chains: list[list[int]] = []
    for _ in range(draw(st.integers(1, 14))):
        node, chain = 1, []
        for _ in range(draw(st.integers(1, 5))):
            node = node * 2 + draw(st.integers(0, 1))
            chain.append(node)
        full = draw(st.integers(0, len(chain)))
        prompts.append(max(1, full * SIZE + draw(st.integers(0, SIZE - 1))))
        outputs.append((len(chain) + 1) * SIZE - prompts[-1])
        chains.append([*chain[:full], *(chain[full:] if draw(st.booleans()) else [])])
    counts = [prompt // SIZE for prompt in prompts]
    hashes = [node for chain, count in zip(chains, counts, strict=True) for node in chain[:count]]
    answers = [chain[count:] for chain, count in zip(chains, counts, strict=True)]
    return make(
        "tree",
        block_size=SIZE,
        prompt_tokens=prompts,
        output_tokens=outputs,
        hashes=np.array(hashes, dtype=np.uint64),
        offsets=np.cumsum([0, *counts]),
        arrival_s=np.zeros(len(prompts)),
        output_hashes=np.array([node for answer in answers for node in answer], dtype=np.uint64),
        output_offsets=np.cumsum([0, *map(len, answers)]),
    )


@given(workload=workloads(), capacity=st.integers(0, 25))
def test_pool_of_a_workload_equals_one_simulated_block_by_block(*, workload: Workload, capacity: int) -> None:
    pool: OrderedDict[int, None] = OrderedDict()
    hit_blocks = 0
    for row in range(len(workload)):
        prompt = workload.prompt(row).tolist()
        usable = (int(workload.prompt_tokens[row]) - 1) // SIZE
        hit_blocks += sum(block in pool for block in prompt[:usable])
        for block in reversed([*prompt, *workload.answer(row).tolist()]):
            pool[block] = None
            pool.move_to_end(block)
        while len(pool) > capacity:
            pool.popitem(last=False)
    tokens = int(workload.prompt_tokens.sum())
    expected = HitCount(len(workload.hashes), hit_blocks, tokens, hit_blocks * SIZE)
    assert PoolProfile(workload).hits(capacity) == expected


@pytest.mark.parametrize("name", WORKLOADS)
def test_infinite_pool_hits_what_an_infinite_cache_does(name: str) -> None:
    workload = build(name, seed=2, count=400)
    assert PoolProfile(workload).hits().token_rate == pytest.approx(workload.infinite_hits(last_token=True), abs=1e-12)


def test_pool_of_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="capacity must be at least 0, got -1"):
        PoolProfile(build("chat", count=10)).hits(-1)


def test_pool_of_the_real_trace_has_the_known_hits(conversation_trace: Path) -> None:
    profile = PoolProfile(read_mooncake(conversation_trace))
    sizes = (30_000, 250_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000)
    rates = [round(100 * profile.hits(tokens // 16).token_rate, 1) for tokens in sizes]
    assert rates == [4.3, 4.3, 5.5, 14.2, 29.4, 36.6]
    assert round(100 * profile.hits().token_rate, 2) == 37.36


# === known figures of the real trace ===


@pytest.fixture(scope="module")
def conversation(conversation_trace: Path) -> list[Request]:
    return list(read_trace(conversation_trace))


def profile_of(
    rows: list[Request], order: Literal["leaf", "sequential"], *, partial_tail: bool, block_size: int = 512
) -> ReuseProfile:
    return ReuseProfile(rows, id_tokens=512, block_size=block_size, partial_tail=partial_tail, order=order)


def test_published_figures_count_the_partial_tail_and_use_textbook_distances(conversation: list[Request]) -> None:
    profile = profile_of(conversation, "sequential", partial_tail=True)
    infinite = profile.hits()
    assert (infinite.hit_blocks, infinite.blocks, profile.distinct_blocks) == (105_710, 288_500, 182_790)
    assert round(100 * infinite.block_rate, 2) == 36.64
    assert round(100 * infinite.token_rate, 2) == 37.36
    capacities = (30_000, 250_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000)
    rates = [round(100 * profile.hits(tokens // 512).token_rate, 1) for tokens in capacities]
    assert rates == [3.9, 4.3, 5.4, 13.8, 29.1, 36.6]


def test_engine_figures_count_full_blocks_and_drop_from_the_end(conversation: list[Request]) -> None:
    profile = profile_of(conversation, "leaf", partial_tail=False)
    infinite = profile.hits()
    assert (infinite.hit_blocks, infinite.blocks) == (105_592, 276_491)
    rates = [round(100 * profile.hits(tokens // 512).token_rate, 2) for tokens in (30_000, 1_000_000, 3_200_000)]
    assert rates == [4.25, 5.59, 15.27]


def test_smaller_blocks_save_the_tail_that_full_blocks_lose(conversation: list[Request]) -> None:
    rate = profile_of(conversation, "leaf", partial_tail=False, block_size=64).hits().token_rate
    assert round(100 * rate, 2) == 37.36
