"""The cache of an engine with several groups, by brute force over prefixes and resume points."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence

from cachelb.cache_groups import CacheGroup, CacheLayout

Prefix = tuple[int, ...]
"""A block is named by all tokens up to its end."""


def resumable(layout: CacheLayout, prompt: Prefix, held: Sequence[Collection[Prefix]], *, sides: bool = True) -> int:
    """Return the greatest number of tokens that all groups accept, or those that keep everything."""
    step = math.lcm(*(group.block_size for group in layout.groups))
    accepted = [
        end
        for end in range(0, len(prompt), step)
        if all(
            _accepts(group, end, prompt, blocks, eagle=layout.eagle)
            for group, blocks in zip(layout.groups, held, strict=True)
            if sides or group.kind in ("full_attention", "mla_attention")
        )
    ]
    return max(accepted)


def _accepts(group: CacheGroup, end: int, prompt: Prefix, held: Collection[Prefix], *, eagle: bool) -> bool:
    if end == 0:
        return True
    size = group.block_size
    top = end + size if eagle and group.kind != "mamba" else end
    if group.kind == "sliding_window":
        assert group.window is not None
        low = end - math.ceil((group.window - 1) / size) * size
    elif group.kind == "mamba":
        low = end - size
    elif group.kind == "chunked_local_attention":
        assert group.chunk is not None
        low = math.floor(end / group.chunk) * group.chunk
    else:
        low = 0
    ends = [e for e in range(size, top + 1, size) if e > low]
    return all(e <= len(prompt) and prompt[:e] in held for e in ends)


class GroupedEngine:
    """An engine whose cache has room for everything; it computes each prompt in one step."""

    def __init__(self, layout: CacheLayout) -> None:
        self.layout = layout
        self.held: list[set[Prefix]] = [set() for _ in layout.groups]

    def serve(self, tokens: Prefix, prompt_tokens: int) -> tuple[int, int]:
        """Compute a prompt and its answer but the last token; return what was cached, and what full groups held."""
        prompt = tokens[:prompt_tokens]
        hit = resumable(self.layout, prompt, self.held)
        full = resumable(self.layout, prompt, self.held, sides=False)
        for group, held in zip(self.layout.groups, self.held, strict=True):
            kept = self._kept(group, len(tokens), prompt_tokens, hit, full)
            held.update(tokens[:end] for end in kept if end > hit)  # the others are not computed again
        return hit, full

    def _kept(self, group: CacheGroup, computed: int, prompt: int, hit: int, full: int) -> set[int]:
        """Return where the blocks that a group keeps end."""
        size, step = group.block_size, self.layout.alignment
        last = computed // step * step
        if self.layout.eagle and last:
            last = min(last + size, computed) // size * size
        ends = set(range(size, last + 1, size))
        if not group.is_sparse:
            return ends
        at = {(prompt - 1) // step * step} | ({full} if full > hit else set())
        if self.layout.eagle:
            at = {max(0, n // step * step - step) for n in (prompt - 1, prompt)} | ({full} if full > hit else set())
        interval = step if self.layout.retention_interval is None else self.layout.retention_interval
        regular = set(range(interval, computed + interval, interval)) if interval else set()
        if group.kind == "mamba":
            # States exist where a step of the prefill ends, and at every block of the answer.
            exist = {hit, *at} | {end for end in ends if end > (prompt - 1) // size * size}
            dense = self.layout.retention_interval is None
            return ends & exist & (ends if dense else at | regular)
        assert group.window is not None
        above = size if self.layout.eagle else 0
        need = math.ceil((group.window - 1) / size) + (1 if self.layout.eagle else 0)
        if interval and need >= interval / size:
            return ends
        tails = {end + above - i * size for end in at | regular if end for i in range(need)}
        return ends & tails


class HeldByEvents:
    """The blocks of each group by the changes of a cache; a block may have several copies."""

    def __init__(self, groups: int) -> None:
        self.counts: list[Counter[int]] = [Counter() for _ in range(groups)]

    def store(self, group: int, name: int) -> None:
        """Count a copy."""
        self.counts[group][name] += 1

    def remove(self, group: int, name: int) -> None:
        """Remove a copy, which must be there."""
        assert self.counts[group][name] > 0, (group, name)
        self.counts[group][name] -= 1
        if not self.counts[group][name]:
            del self.counts[group][name]

    def copies(self) -> int:
        """Count the blocks held."""
        return sum(counts.total() for counts in self.counts)
