"""The index as one would write it first: a dictionary of blocks, each with a dictionary of its holders."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from benches.structures.prompts import BLOCK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benches.structures.prompts import Prompt


class NestedMaps:
    """Block to holder to when it was used last, in plain Python."""

    name = "nested maps"

    def __init__(self) -> None:
        """Start empty."""
        self._blocks: dict[int, dict[int, float]] = {}

    def record(self, prompt: Prompt, worker: int) -> None:
        """Add a worker as a holder of a prompt."""
        now = time.monotonic()
        for block in _chain(prompt):
            self._blocks.setdefault(block, {})[worker] = now

    def match(self, prompt: Prompt) -> dict[int, int]:
        """Return the blocks that every worker holds."""
        overlaps: dict[int, int] = {}
        live: set[int] | None = None
        for depth, block in enumerate(_chain(prompt), 1):
            holders = self._blocks.get(block)
            if holders is None:
                break
            live = set(holders) if live is None else live.intersection(holders)
            if not live:
                break
            for worker in live:
                overlaps[worker] = depth
        return overlaps

    def best(self, answer: dict[int, int]) -> tuple[int, frozenset[int]]:
        """Read an answer."""
        most = max(answer.values(), default=0)
        return most, frozenset(worker for worker, blocks in answer.items() if blocks == most > 0)


def _chain(prompt: Prompt) -> Iterator[int]:
    chained = 0
    tokens = prompt.tokens
    for at in range(0, len(tokens) - BLOCK + 1, BLOCK):
        chained = hash((chained, tuple(tokens[at : at + BLOCK])))
        yield chained
