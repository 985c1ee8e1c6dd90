"""The cost of one call from Python. Each call is timed alone (`iterations=1`); medians are read by `report.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

from cachelb.index import BlockTracker
from cachelb.policies import CacheAware

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_benchmark.fixture import BenchmarkFixture

    from cachelb import Decision

WORKERS = [f"http://gpu{index}:8000" for index in range(64)]
VOCABULARY = 128_000
RESIDENT_PROMPTS = 4_000
LONG = 131_072

Buffer: TypeAlias = NDArray[np.uint32]


def prompts(count: int, length: int, seed: int = 1) -> list[Buffer]:
    """Draw prompts that share nothing."""
    random = np.random.default_rng(seed)
    return [random.integers(0, VOCABULARY, length, dtype=np.uint32) for _ in range(count)]


def as_is(tokens: Buffer) -> Buffer:
    """Pass the buffer itself."""
    return tokens


def as_list(tokens: Buffer) -> list[int]:
    """Pass Python integers."""
    integers: list[int] = tokens.tolist()
    return integers


def label(benchmark: BenchmarkFixture, name: str, note: str) -> None:
    """Name the row in the report."""
    benchmark.extra_info.update(id=f"python/{name}", note=note)


@pytest.mark.parametrize("form", [as_is, as_list], ids=["buffer", "list"])
def test_record_known_prompt(benchmark: BenchmarkFixture, form: Callable[[Buffer], Buffer | list[int]]) -> None:
    """Hash, match and record one prompt that the worker holds."""
    tracker = BlockTracker(max_blocks_per_worker=1_000_000)
    for index, resident in enumerate(prompts(100, 32_768)):
        tracker.record_request(resident, WORKERS[index % 64])
    tokens = form(prompts(1, 32_768)[0])
    kind = "buffer" if form is as_is else "list"
    label(benchmark, f"record_request/32768/{kind}/known", "hash + match + record in one call, 64 workers")
    stored = benchmark.pedantic(tracker.record_request, args=(tokens, WORKERS[0]), rounds=2_000, warmup_rounds=50)
    assert stored == 0


@pytest.mark.parametrize("form", [as_is, as_list], ids=["buffer", "list"])
def test_find_best_worker(benchmark: BenchmarkFixture, form: Callable[[Buffer], Buffer | list[int]]) -> None:
    """Hash and match one prompt that a worker holds."""
    tracker = BlockTracker(max_blocks_per_worker=1_000_000)
    for index, resident in enumerate(prompts(100, 32_768)):
        tracker.record_request(resident, WORKERS[index % 64])
    tokens = form(prompts(1, 32_768)[0])
    kind = "buffer" if form is as_is else "list"
    label(benchmark, f"find_best_worker/32768/{kind}/known", "hash + all-worker match, 64 workers")
    found = benchmark.pedantic(tracker.find_best_worker, args=(tokens,), rounds=2_000, warmup_rounds=50)
    assert found is not None
    assert (found.worker, found.matched_blocks) == (WORKERS[0], 2_048)


def same_list() -> list[str]:
    """Pass the same list on every call."""
    return WORKERS


def fresh_list() -> list[str]:
    """Pass a new list of the same strings."""
    return list(WORKERS)


def fresh_strings() -> list[str]:
    """Pass a new list of new strings."""
    return [f"http://gpu{index}:8000" for index in range(64)]


@pytest.mark.parametrize("workers", [same_list, fresh_list, fresh_strings])
def test_select_short_known_prompt(benchmark: BenchmarkFixture, workers: Callable[[], list[str]]) -> None:
    """Select among 64 workers for one of many known 512-token prompts; the booking is completed untimed."""
    policy = CacheAware(max_blocks_per_worker=1_000_000, seed=1)
    known = prompts(RESIDENT_PROMPTS, 512)
    for tokens in known:
        policy.select_worker(WORKERS, tokens=tokens).on_complete()
    order = iter(np.random.default_rng(2).integers(0, RESIDENT_PROMPTS, 50_000).tolist())
    decisions: list[Decision[str]] = []

    def select(among: list[str], tokens: Buffer) -> None:
        decisions.append(policy.select_worker(among, tokens=tokens))

    def setup() -> tuple[tuple[list[str], Buffer], dict[str, object]]:
        while decisions:
            decisions.pop().on_complete()
        return (workers(), known[next(order)]), {}

    label(benchmark, f"select_worker/512/{workers.__name__}", f"64 str workers, {RESIDENT_PROMPTS} prompts known")
    benchmark.pedantic(select, setup=setup, rounds=20_000)
    assert decisions[0].matched_tokens > 0


@pytest.mark.parametrize("length", [32_768, LONG])
@pytest.mark.parametrize("known", [True, False], ids=["known", "new"])
def test_select_long_prompt(benchmark: BenchmarkFixture, length: int, *, known: bool) -> None:
    """Select among 64 workers for a long prompt, whose blocks are to be matched, or stored."""
    policy = CacheAware(max_blocks_per_worker=1_000_000, seed=1)
    rounds = 1_000 if known else 300
    supply = iter(prompts(1, length) * (rounds + 1) if known else prompts(rounds + 1, length))
    policy.select_worker(WORKERS, tokens=next(supply)).on_complete()
    decisions: list[Decision[str]] = []

    def select(tokens: Buffer) -> None:
        decisions.append(policy.select_worker(WORKERS, tokens=tokens))

    def setup() -> tuple[tuple[Buffer], dict[str, object]]:
        while decisions:
            decisions.pop().on_complete()
        return (next(supply),), {}

    kind = "known" if known else "new"
    stores = "" if known else f", {length // 16:,} stores"
    label(benchmark, f"select_worker/{length}/{kind}", f"64 str workers{stores}")
    benchmark.pedantic(select, setup=setup, rounds=rounds)
    assert (decisions[0].matched_tokens > 0) is known
