"""Prompts with shared prefixes, as tokens and as text, and a model of their holders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

BLOCK = 16
"""Tokens of a block."""

CHARS = 4
"""Characters of a token, where a prompt is text."""

WORKERS = 64
_VOCABULARY = 128_000
_FAMILIES = 16


@dataclass(frozen=True)
class Prompt:
    """A prompt as a list, an array and text."""

    tokens: list[int]

    @cached_property
    def array(self) -> np.ndarray:
        """Token ids as a numpy array."""
        return np.array(self.tokens, dtype=np.uint32)

    @cached_property
    def text(self) -> str:
        """Text with a fixed number of ASCII characters per token; equal where the tokens are."""
        return "".join(f"{token % 10_000:04d}" for token in self.tokens)


class Contender(NamedTuple):
    """A function of a prompt that is measured."""

    name: str
    call: Callable[[Prompt], object]
    note: str = ""

    def over(self, given: Sequence[Prompt]) -> Callable[[int], object]:
        """Bind it to prompts, which are taken in rotation."""
        return lambda i: self.call(given[i % len(given)])


def prompts(count: int, length: int, *, seed: int = 0, share: float = 0.75) -> list[Prompt]:
    """Make prompts of 16 families, which share their beginning.

    Example:
        >>> first, second = prompts(17, 64)[0], prompts(17, 64)[16]
        >>> first.tokens[:48] == second.tokens[:48], first.tokens[48] == second.tokens[48]
        (True, False)
    """
    draw = np.random.default_rng(seed)
    shared = round(length * share)
    heads = draw.integers(_VOCABULARY, size=(_FAMILIES, shared), dtype=np.uint32)
    tails = draw.integers(_VOCABULARY, size=(count, length - shared), dtype=np.uint32)
    # The first token of every tail differs.
    tails[:, :1] = np.arange(count, dtype=np.uint32)[:, None]
    return [Prompt([*heads[i % _FAMILIES].tolist(), *tails[i].tolist()]) for i in range(count)]


class Truth:
    """A model: the holders of every block, kept one by one."""

    def __init__(self) -> None:
        """Start empty."""
        self._held: dict[tuple[int, int], set[int]] = {}

    def record(self, prompt: Prompt, worker: int) -> None:
        """Add a worker as a holder of a prompt."""
        for block in _chain(prompt.tokens):
            self._held.setdefault(block, set()).add(worker)

    def best(self, prompt: Prompt) -> tuple[int, frozenset[int]]:
        """Find the holders of the longest prefix."""
        depth, holders = 0, frozenset[int]()
        for block in _chain(prompt.tokens):
            now = self._held.get(block)
            # Prompts are only added, and whole: a holder of a block holds all blocks before it.
            if not now:
                break
            depth, holders = depth + 1, frozenset(now)
        return depth, holders


def _chain(tokens: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Name every block by all before it. Two hashes: one alone could collide among a million."""
    first = second = 0
    for at in range(0, len(tokens) - BLOCK + 1, BLOCK):
        block = tuple(tokens[at : at + BLOCK])
        first, second = hash((first, block)), hash((block, second, at))
        yield first, second
