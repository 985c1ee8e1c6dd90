"""The single-pool LRU bound: against a cache simulated block by block, and on the real trace."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models.lru_pool import LruPool
from tests.models.trace_rows import Row, read_rows

from cachelb_lab.sim.figures.lru_bound import HitCount, PoolProfile
from cachelb_lab.sim.workloads import WORKLOADS, Workload, build, read_mooncake
from cachelb_lab.sim.workloads.workload import make

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


def served(workload: Workload, pool: LruPool) -> int:
    """Serve all rows from a pool, and count the blocks it held."""
    rows = zip(workload.prompt_tokens.tolist(), range(len(workload)), strict=True)
    return sum(
        pool.serve(
            [*workload.prompt(row).tolist(), *workload.answer(row).tolist()], usable=(tokens - 1) // workload.block_size
        )
        for tokens, row in rows
    )


@given(workload=workloads(), capacity=st.integers(0, 25))
def test_pool_of_a_workload_equals_one_simulated_block_by_block(*, workload: Workload, capacity: int) -> None:
    hit_blocks, tokens = served(workload, LruPool(capacity)), int(workload.prompt_tokens.sum())
    expected = HitCount(len(workload.hashes), hit_blocks, tokens, hit_blocks * SIZE)
    assert PoolProfile(workload).hits(capacity) == expected


@pytest.mark.parametrize("name", WORKLOADS)
def test_infinite_pool_hits_what_an_infinite_cache_does(name: str) -> None:
    workload = build(name, seed=2, count=400)
    assert PoolProfile(workload).hits().hit_blocks == served(workload, LruPool(None))


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


def published(rows: list[Row], capacity: int | None = None) -> HitCount:
    """Count partial blocks too, in one LRU pool that drops the least recent block wherever it stands in its prompt."""
    pool: OrderedDict[int, None] = OrderedDict()
    blocks = hit_blocks = hit_tokens = 0
    for row in rows:
        chain = 0
        for start in range(0, row.prompt_tokens, 512):
            tokens = min(512, row.prompt_tokens - start)
            chain = hash((chain, row.hash_ids[start // 512], tokens))
            hit_blocks, hit_tokens = hit_blocks + (chain in pool), hit_tokens + tokens * (chain in pool)
            pool[chain] = None
            pool.move_to_end(chain)
            if capacity is not None and len(pool) > capacity:
                pool.popitem(last=False)
            blocks += 1
    return HitCount(blocks, hit_blocks, sum(row.prompt_tokens for row in rows), hit_tokens)


def test_published_figures_of_the_real_trace_are_those_of_a_textbooks_pool(conversation_trace: Path) -> None:
    rows = read_rows(conversation_trace)
    infinite = published(rows)
    assert (infinite.hit_blocks, infinite.blocks) == (105_710, 288_500)
    assert round(100 * infinite.token_rate, 2) == 37.36
    for capacity, rate in {30_000: 3.9, 1_000_000: 5.4, 10_000_000: 29.1}.items():
        assert 100 * published(rows, capacity // 512).token_rate == pytest.approx(rate, abs=0.051)


def test_pools_of_engines_have_the_known_hits_on_the_real_trace(conversation_trace: Path) -> None:
    profile = PoolProfile(read_mooncake(conversation_trace, block_size=512))
    assert (profile.hits().hit_blocks, profile.hits().blocks) == (105_592, 276_491)
    for capacity, rate in {30_000: 4.25, 1_000_000: 5.59, 3_200_000: 15.27}.items():
        assert 100 * profile.hits(capacity // 512).token_rate == pytest.approx(rate, abs=0.0051)
    # Smaller blocks save the tail that full blocks lose.
    small = PoolProfile(read_mooncake(conversation_trace, block_size=64))
    assert round(100 * small.hits().token_rate, 2) == 37.36
