"""The block indexes keep within `max_memory_mb`."""

from __future__ import annotations

import numpy as np
import pytest

from cachelb import Router

WORKERS = [f"http://gpu{index}:8000" for index in range(8)]
PROMPTS = 200_000


@pytest.mark.parametrize("megabytes", [1, 2.5])
def test_index_bytes_stay_within_the_budget(megabytes: float) -> None:
    router = Router(WORKERS, max_memory_mb=megabytes, seed=1)
    random = np.random.default_rng(7)
    blocks = []
    for start in range(0, PROMPTS, 1000):
        tokens = random.integers(0, 128_000, (1000, 40), dtype=np.uint32)
        for prompt in tokens:
            router.select_worker(tokens=prompt).on_complete()
        stats = router.stats()
        assert stats.index_bytes <= megabytes * 2**20, f"after {start + 1000} prompts"
        blocks.append(stats.index_blocks)
    assert min(blocks[50:]) > 0.75 * max(blocks), "a grown table leaves its entries less room, not a half"
    assert stats.evictions["memory"] > PROMPTS
    assert stats.evictions["capacity"] == 0
    assert stats.dropped["no-room"] == 0


@pytest.mark.parametrize("megabytes", [0.5, 0, -3, float("nan"), float("inf")])
def test_a_budget_below_the_minimum_is_refused_with_the_minimum_named(megabytes: float) -> None:
    with pytest.raises(ValueError, match=r"max_memory_mb must be a finite number, 1 or more"):
        Router(WORKERS, max_memory_mb=megabytes)


def test_without_a_budget_only_the_capacities_bound_the_index() -> None:
    router = Router(WORKERS, max_memory_mb=None, seed=1)
    for start in range(300):
        router.select_worker(tokens=range(start * 8000, (start + 1) * 8000)).on_complete()
    assert router.stats().index_blocks == 300 * 500
    assert router.stats().evictions["memory"] == 0
