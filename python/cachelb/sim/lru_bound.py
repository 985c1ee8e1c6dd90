"""The hit rate of one LRU pool, at every capacity at once.

A fleet cannot cache more than one pool that holds all its memory and sees every request, so that
pool's hit rate is the yardstick for a routing policy. LRU is not optimal: a partitioned fleet can
pass the bound slightly.

One pass computes, for every block, how many blocks were used more recently than it (its stack
distance); a block is a hit at every capacity above that. A Fenwick tree over points of use counts
them: O(log n) per reference of the trace, whatever the block size, since the blocks of one id
move together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from cachelb.sim.expand import blocks_per_id

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cachelb.sim.traces import Request

_NEVER = np.iinfo(np.int64).max
_ROOT = -1


@dataclass(frozen=True, slots=True)
class HitCount:
    """Hits of one cache over one trace.

    Attributes:
        blocks: Blocks looked up.
        hit_blocks: Those that were held.
        prompt_tokens: Tokens of all prompts, also those outside a counted block.
        hit_tokens: Tokens in the blocks that were held.
    """

    blocks: int
    hit_blocks: int
    prompt_tokens: int
    hit_tokens: int

    @property
    def block_rate(self) -> float:
        """Return the held share of the blocks; 0 without blocks."""
        return self.hit_blocks / self.blocks if self.blocks else 0.0

    @property
    def token_rate(self) -> float:
        """Return the held share of the prompt tokens; 0 without tokens."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


class ReuseProfile:
    """Stack distances of a trace; answers any pool size without another pass.

    Args:
        requests: The trace, in order of arrival.
        id_tokens: Tokens one hash id stands for.
        block_size: Tokens per block of the pool.
        partial_tail: Count the partial block at the end of a prompt as a block, as published
            figures of such traces do. Engines cache full blocks only, which is the default.
        order: In which order a request uses its blocks. ``"leaf"``: its first block ends up the
            most recent, so that the pool drops a prefix from its end, as engines do.
            ``"sequential"``: its last block does, and each block sees the use of those before
            it; the textbook stack distance, on blocks as large as an id only.

    Raises:
        ValueError: ``block_size`` does not divide ``id_tokens``, or ``order`` does not fit.

    Example:
        >>> from cachelb.sim.traces import Request
        >>> trace = [Request(0.0, 2, 1, (0, n)) for n in (1, 2, 1)]
        >>> profile = ReuseProfile(trace, id_tokens=1, block_size=1)
        >>> [profile.hits(capacity).hit_blocks for capacity in (0, 1, 2, 3)]
        [0, 2, 2, 3]
    """

    def __init__(
        self,
        requests: Iterable[Request],
        *,
        id_tokens: int,
        block_size: int,
        partial_tail: bool = False,
        order: Literal["leaf", "sequential"] = "leaf",
    ) -> None:
        per_id = blocks_per_id(id_tokens, block_size)
        if order not in ("leaf", "sequential"):
            raise ValueError(f"order must be 'leaf' or 'sequential', got {order!r}")
        if order == "sequential" and per_id != 1:
            raise ValueError(f"order 'sequential' needs block_size = id_tokens = {id_tokens}, got {block_size}")
        chains = _Chains(id_tokens, block_size, partial_tail=partial_tail)
        paths = [chains.path(request) for request in requests]
        distances = _leaf_distances(paths) if order == "leaf" else _sequential_distances(paths)
        self._block_size = block_size
        self._distance = np.array(distances, dtype=np.int64)
        self._run = np.array([blocks for path in paths for _, blocks in path], dtype=np.int64)
        self._tokens = np.array(chains.tokens, dtype=np.int64)
        self._prompt_tokens = chains.prompt_tokens
        self.distinct_blocks = chains.distinct_blocks()

    def hits(self, capacity: int | None = None) -> HitCount:
        """Return the hits of a pool.

        Args:
            capacity: Blocks the pool holds; None for an infinite pool.

        Returns:
            Hits over the whole trace, from an empty pool.

        Raises:
            ValueError: ``capacity`` is negative.
        """
        if capacity is None:
            held = np.where(self._distance == _NEVER, 0, self._run)
        elif capacity < 0:
            raise ValueError(f"capacity must not be negative, got {capacity}")
        else:
            held = np.clip(capacity - self._distance, 0, self._run)
        return HitCount(
            blocks=int(self._run.sum()),
            hit_blocks=int(held.sum()),
            prompt_tokens=self._prompt_tokens,
            hit_tokens=int(np.minimum(held * self._block_size, self._tokens).sum()),
        )


class _Chains:
    """Gives every distinct chain of ids a number, and measures the ids in blocks.

    Numbering chains instead of ids keeps the bound right where a trace reuses an id behind
    different prefixes.
    """

    def __init__(self, id_tokens: int, block_size: int, *, partial_tail: bool) -> None:
        self._id_tokens = id_tokens
        self._block_size = block_size
        self._spare = block_size - 1 if partial_tail else 0
        self._nodes: dict[tuple[int, int, int], int] = {}
        self.tokens: list[int] = []
        self.prompt_tokens = 0

    def path(self, request: Request) -> list[tuple[int, int]]:
        """Return (chain number, blocks) per id that makes at least one block."""
        nodes, id_tokens = self._nodes, self._id_tokens
        left, node, path = request.prompt_tokens, _ROOT, []
        self.prompt_tokens += left
        for value in request.hash_ids:
            tokens = min(id_tokens, left)
            blocks = (tokens + self._spare) // self._block_size
            if not blocks:
                break
            node = nodes.setdefault((node, value, blocks), len(nodes))
            path.append((node, blocks))
            self.tokens.append(tokens)
            left -= tokens
        return path

    def distinct_blocks(self) -> int:
        """Return the blocks of all distinct chains."""
        return sum(blocks for _, _, blocks in self._nodes)


def _leaf_distances(paths: list[list[tuple[int, int]]]) -> list[int]:
    """Return blocks used more recently than each reference when its request starts."""
    uses = _Uses(sum(map(len, paths)))
    distances = []
    for path in paths:
        distances += [uses.newer_than(node) for node, _ in path]
        for node, blocks in reversed(path):
            uses.touch(node, blocks)
    return distances


def _sequential_distances(paths: list[list[tuple[int, int]]]) -> list[int]:
    """Return blocks used more recently than each reference when its turn comes."""
    uses = _Uses(sum(map(len, paths)))
    distances = []
    for path in paths:
        for node, blocks in path:
            distances.append(uses.newer_than(node))
            uses.touch(node, blocks)
    return distances


class _Uses:
    """A Fenwick tree of block counts over the points of use, oldest first."""

    def __init__(self, points: int) -> None:
        self._sums = [0] * (points + 1)
        self._last: dict[int, tuple[int, int]] = {}
        self._point = 0
        self._total = 0

    def newer_than(self, node: int) -> int:
        """Return how many blocks were used after this one's last use."""
        last = self._last.get(node)
        if last is None:
            return int(_NEVER)
        newer, point, sums = self._total, last[0], self._sums
        while point:
            newer -= sums[point]
            point &= point - 1
        return newer

    def touch(self, node: int, blocks: int) -> None:
        """Make a node the most recently used one."""
        last = self._last.get(node)
        if last is not None:
            self._add(last[0], -last[1])
        self._point += 1
        self._last[node] = (self._point, blocks)
        self._add(self._point, blocks)

    def _add(self, point: int, blocks: int) -> None:
        """Change the block count at a point."""
        self._total += blocks
        sums = self._sums
        while point < len(sums):
            sums[point] += blocks
            point += point & -point
