"""One cache of blocks, step by step."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence


class LruPool:
    """Drops the block that waited longest, of a prompt the last."""

    def __init__(self, capacity: int | None) -> None:
        self._capacity = capacity
        self._held: OrderedDict[Hashable, None] = OrderedDict()

    def serve(self, blocks: Sequence[Hashable], usable: int) -> int:
        """Keep the blocks of a request; return how many of the first were held before."""
        hits = sum(block in self._held for block in blocks[:usable])
        for block in reversed(blocks):
            self._held[block] = None
            self._held.move_to_end(block)
        while self._capacity is not None and len(self._held) > self._capacity:
            self._held.popitem(last=False)
        return hits
