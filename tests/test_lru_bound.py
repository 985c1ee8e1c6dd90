"""The single-pool LRU bound: against a cache simulated block by block, and on the real trace."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelb.sim.lru_bound import HitCount, PoolProfile
from cachelb.sim.traces import Request, read_trace
from cachelb.sim.workloads import WORKLOADS, Workload, build, read_mooncake
from cachelb.sim.workloads.workload import make

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


# === known figures of the real trace, by a pool simulated block by block ===


def blocks_of(row: Request, block_size: int, *, partial_tail: bool) -> list[tuple[int, int]]:
    """Each block as (the chain of ids that it ends, its tokens)."""
    blocks, chain = [], 0
    for start in range(0, row.prompt_tokens, block_size):
        tokens = min(block_size, row.prompt_tokens - start)
        chain = hash((chain, row.hash_ids[start // 512], start % 512, tokens))
        if tokens == block_size or partial_tail:
            blocks.append((chain, tokens))
    return blocks


def pooled(paths: list[list[tuple[int, int]]], tokens: int, capacity: int | None = None, *, leaf: bool) -> HitCount:
    """Count the hits of one LRU pool. With `leaf` it drops a prompt from its end, as engines do; else as textbooks."""
    pool: OrderedDict[int, None] = OrderedDict()
    hit_blocks = hit_tokens = 0
    for path in paths:
        hits = [size for block, size in path if block in pool] if leaf else []
        for block, size in reversed(path) if leaf else path:
            if not leaf and block in pool:
                hits.append(size)
            pool[block] = None
            pool.move_to_end(block)
            while capacity is not None and not leaf and len(pool) > capacity:
                pool.popitem(last=False)
        while capacity is not None and len(pool) > capacity:
            pool.popitem(last=False)
        hit_blocks += len(hits)
        hit_tokens += sum(hits)
    return HitCount(sum(map(len, paths)), hit_blocks, tokens, hit_tokens)


@pytest.mark.parametrize(
    ("leaf", "partial_tail", "block_size", "blocks", "token_rate", "rates"),
    [
        # What was published counts partial blocks.
        (False, True, 512, (105_710, 288_500), 37.36, {30_000: 3.9, 1_000_000: 5.4, 10_000_000: 29.1}),
        (True, False, 512, (105_592, 276_491), None, {30_000: 4.25, 1_000_000: 5.59, 3_200_000: 15.27}),
        # Smaller blocks save the tail that full blocks lose.
        (True, False, 64, None, 37.36, {}),
    ],
    ids=["published", "engines", "small blocks"],
)
def test_pools_of_the_real_trace_have_the_known_hits(
    conversation_trace: Path,
    *,
    leaf: bool,
    partial_tail: bool,
    block_size: int,
    blocks: tuple[int, int] | None,
    token_rate: float | None,
    rates: dict[int, float],
) -> None:
    rows = list(read_trace(conversation_trace))
    tokens = sum(row.prompt_tokens for row in rows)
    paths = [blocks_of(row, block_size, partial_tail=partial_tail) for row in rows]
    infinite = pooled(paths, tokens, leaf=leaf)
    assert blocks in (None, (infinite.hit_blocks, infinite.blocks))
    assert token_rate in (None, round(100 * infinite.token_rate, 2))
    for capacity, rate in rates.items():
        found = 100 * pooled(paths, tokens, capacity // block_size, leaf=leaf).token_rate
        assert found == pytest.approx(rate, abs=0.051 if partial_tail else 0.0051)
