"""What one call of the radix tree costs from Python. How long an eviction makes others wait: `radix_pause.py`."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

from cachelb import PrefixMatch, RadixTree

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


def filled(prompts: list[Prompt]) -> RadixTree:
    """Insert prompts for all workers in turn."""
    tree = RadixTree()
    for number, prompt in enumerate(prompts):
        tree.insert(prompt, WORKERS[number % 64])
    return tree


def match_and_insert(tree: RadixTree, prompt: Prompt) -> PrefixMatch:
    """Do what a router does per request."""
    found = tree.match_prefix(prompt)
    tree.insert(prompt, WORKERS[0])
    return found


@pytest.mark.parametrize("draw", [texts, tokens])
@pytest.mark.parametrize("known", [True, False], ids=["known", "first"])
def test_match_and_insert(
    benchmark: BenchmarkFixture, draw: Callable[[int, int], list[Prompt]], *, known: bool
) -> None:
    """Match and insert a prompt that worker 0 holds, or one that nobody does."""
    resident = draw(RESIDENT, 1)
    tree = filled(resident)
    fresh = iter(draw(ROUNDS + 20, 2) if not known else ())
    kind, state = draw.__name__, "known" if known else "first"
    benchmark.extra_info.update(
        id=f"python/radix/{kind}-{UNITS}/{state}",
        note=f"match_prefix + insert, {RESIDENT} prompts resident, 64 workers",
    )

    def setup() -> tuple[tuple[RadixTree, Prompt], dict[str, Any]]:
        return (tree, resident[0] if known else next(fresh)), {}

    found = benchmark.pedantic(match_and_insert, setup=setup, rounds=ROUNDS, warmup_rounds=10)
    assert (found.matched == UNITS) == known
