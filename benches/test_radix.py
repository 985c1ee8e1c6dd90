"""The cost of one call of the radix tree from Python. How long an eviction makes others wait: `radix_pause.py`."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

from cachelb.index import PrefixMatch, RadixTree

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_benchmark.fixture import BenchmarkFixture

    Draw: TypeAlias = Callable[[int, int], list["Prompt"]]

Prompt: TypeAlias = str | NDArray[np.uint32]

WORKERS = [f"http://gpu{index}:8000" for index in range(64)]
UNITS = 32_768
RESIDENT = 200
ROUNDS = 400


def texts(count: int, seed: int) -> list[Prompt]:
    """Draw prompts of words that share nothing but their alphabet."""
    dice = random.Random(seed)
    words = ["".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=dice.randint(2, 9))) for _ in range(5000)]
    return [" ".join(dice.choices(words, k=UNITS // 4))[:UNITS] for _ in range(count)]


def tokens(count: int, seed: int) -> list[Prompt]:
    """Draw prompts of tokens."""
    dice = np.random.default_rng(seed)
    return [dice.integers(0, 128_000, UNITS, dtype=np.uint32) for _ in range(count)]


def filled(prompts: list[Prompt], max_units: int | None) -> RadixTree:
    """Insert prompts for all workers in turn."""
    tree = RadixTree(max_units=max_units)
    for number, prompt in enumerate(prompts):
        tree.insert(prompt, WORKERS[number % 64])
    return tree


def match_and_insert(tree: RadixTree, prompt: Prompt) -> PrefixMatch:
    """Do what a router does per request."""
    found = tree.match_prefix(prompt)
    tree.insert(prompt, WORKERS[0])
    return found


@pytest.mark.parametrize("draw", [texts, tokens])
@pytest.mark.parametrize("state", ["known", "first", "growing"])
def test_match_and_insert(benchmark: BenchmarkFixture, draw: Draw, state: str) -> None:
    """Match and insert a prompt that worker 0 holds, or one that no worker does.

    `first` evicts as much as it adds, as a tree does once its budget is used up; `growing` has no budget and pays for
    memory that the process never touched before. A new prompt is warm in the cache, as if it had just been made.
    """
    resident = draw(RESIDENT, 1)
    tree = filled(resident, RESIDENT * UNITS if state == "first" else None)
    fresh = iter([] if state == "known" else draw(ROUNDS + 20, 2))
    note = f"match_prefix + insert, {RESIDENT} prompts resident, 64 workers"
    benchmark.extra_info.update(id=f"python/radix/{draw.__name__}-{UNITS}/{state}", note=note)

    def setup() -> tuple[tuple[RadixTree, Prompt], dict[str, str]]:
        prompt = resident[0] if state == "known" else next(fresh)
        if state != "known" and not isinstance(prompt, str):
            prompt = prompt.copy()
        return (tree, prompt), {}

    found = benchmark.pedantic(match_and_insert, setup=setup, rounds=ROUNDS, warmup_rounds=10)
    assert (found.matched == UNITS) == (state == "known")
