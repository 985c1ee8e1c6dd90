"""Stack distances of a trace, id by id: what published figures of LRU pools count, and a check of `PoolProfile`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np

from cachelb.arguments import listed, whole
from cachelb.sim.checks import MOST_REQUESTS
from cachelb.sim.expand import blocks_per_id
from cachelb.sim.lru_bound import HitCount
from cachelb.sim.traces import Request

_NEVER = int(np.iinfo(np.int64).max)
_ROOT = -1


class ReuseProfile:
    """Stack distances of a trace in order of arrival; answers any pool size without another pass.

    `partial_tail` counts the partial block at the end of a prompt as a block, as published figures of such traces do;
    engines cache full blocks only, which is the default. `order` is the order in which a request uses its blocks.
    ``"leaf"``: its first block ends up the most recent, so that the pool drops a prefix from its end, as engines do.
    ``"sequential"``: its last block does, and each block sees the use of those before it; the textbook stack distance,
    on blocks as large as an id only.

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
        paths = [chains.path(request) for request in listed("requests", requests, MOST_REQUESTS)]
        distances = _leaf_distances(paths) if order == "leaf" else _sequential_distances(paths)
        self._block_size = block_size
        self._distance = np.array(distances, dtype=np.int64)
        self._run = np.array([blocks for path in paths for _, blocks in path], dtype=np.int64)
        self._tokens = np.array(chains.tokens, dtype=np.int64)
        self._prompt_tokens = chains.prompt_tokens
        self.distinct_blocks = chains.distinct_blocks()

    def hits(self, capacity: int | None = None) -> HitCount:
        """Return the hits over the whole trace, from an empty pool; None is an infinite one."""
        if capacity is None:
            held = np.where(self._distance == _NEVER, 0, self._run)
        else:
            whole("capacity", capacity, 0, _NEVER)
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
