"""Blocks that an engine of some block size keeps of its prompts, slowly and obviously."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

Prefix = tuple[int, ...]
"""A block is named by all tokens up to its end."""


class EngineBlocks:
    """Keeps whole blocks; the longest unused one that nothing follows goes first."""

    def __init__(self, block_size: int, capacity: int | None = None) -> None:
        self.block_size = block_size
        self.capacity = capacity
        self.used: dict[Prefix, int] = {}
        self.time = 0

    def path(self, tokens: Sequence[int]) -> list[Prefix]:
        ends = range(self.block_size, len(tokens) + 1, self.block_size)
        return [tuple(tokens[:end]) for end in ends]

    def keep(self, tokens: Sequence[int]) -> tuple[list[Prefix], list[Prefix]]:
        """Compute a prompt, unless it does not fit. Returns the blocks that are new, and those that had to go."""
        if self.capacity is not None and len(tokens) > self.capacity * self.block_size:
            return [], []
        self.time += 1
        path = self.path(tokens)
        new = [block for block in path if block not in self.used]
        self.used.update(dict.fromkeys(path, self.time))
        gone = []
        while self.capacity is not None and len(self.used) > self.capacity:
            inner = {block[: -self.block_size] for block in self.used}
            leaf = min((b for b in self.used if b not in inner), key=lambda b: (self.used[b], -len(b)))
            del self.used[leaf]
            gone.append(leaf)
        return new, gone

    def credit(self, tokens: Sequence[int], own_size: int) -> int:
        """Tokens it need not compute, in whole blocks of a router's too; the last token is always computed."""
        held = 0
        for block in self.path(tokens):
            if block not in self.used:
                break
            held = len(block)
        unit = math.lcm(self.block_size, own_size)
        return min(held, len(tokens) - 1) // unit * unit


def prompts(seed: int, count: int, *, unit: int = 1) -> Iterator[list[int]]:
    """Prompts, most of which begin as an earlier one does and part from it at multiples of `unit`."""
    longest = max(200, 5 * unit)
    rng = random.Random(seed)
    known: list[list[int]] = [[]]
    for number in range(count):
        earlier = rng.choice(known)
        shared = rng.randint(0, len(earlier)) // unit * unit
        more = rng.randint(1, longest // 2)
        tokens = (earlier[:shared] + [1_000 * number + i for i in range(more)])[:longest]
        known.append(tokens)
        yield rng.choice(known[1:])
