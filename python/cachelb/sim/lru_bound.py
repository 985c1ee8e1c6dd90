"""The hit rate of one LRU pool, at every capacity at once.

A fleet cannot cache more than one pool that holds all its memory and sees every request, so that
pool's hit rate is the yardstick for a routing policy. LRU is not optimal: a partitioned fleet can
pass the bound slightly.

One pass computes, for every block, how many blocks were used more recently than it (its stack
distance); a block is a hit at every capacity above that. A Fenwick tree over points of use counts
them: O(log n) per reference of the trace, whatever the block size, since blocks that all prompts
have or lack together move together: those of one id of a trace, and those of one branch of the tree
that the prompts of a workload form.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from cachelb.arguments import listed, whole
from cachelb.sim.checks import MOST_REQUESTS
from cachelb.sim.expand import blocks_per_id
from cachelb.sim.traces import Request
from cachelb.sim.workloads import Workload

_NEVER = int(np.iinfo(np.int64).max)
_ROOT = -1


@dataclass(frozen=True, slots=True)
class HitCount:
    """Hits of one cache over one trace."""

    blocks: int  # looked up
    hit_blocks: int  # of these, held
    prompt_tokens: int  # of all prompts, outside counted blocks too
    hit_tokens: int  # in the blocks that were held

    @property
    def block_rate(self) -> float:
        """Return the held share of the blocks; 0 without blocks."""
        return self.hit_blocks / self.blocks if self.blocks else 0.0

    @property
    def token_rate(self) -> float:
        """Return the held share of the prompt tokens; 0 without tokens."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


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


class PoolProfile:
    """Hits of one LRU pool that sees all requests of a workload; answers any pool size without another pass.

    A pool drops a prefix from its end, as engines do, and keeps the answers too, where their blocks are known. As in
    engines, the last token of a prompt is always computed: of a prompt that is held to its end, the last block does not
    count. Requests come in the order of the workload's rows, whenever a run lets the next turn of a session arrive.
    """

    def __init__(self, workload: Workload) -> None:
        self._block_size = workload.block_size
        prompts = workload.prompt_tokens.astype(np.int64)
        self._blocks = int((prompts // self._block_size).sum())
        self._prompt_tokens = int(prompts.sum())
        chains = [_chain(workload, row) for row in range(len(workload))]
        branches = _Branches()
        for chain in chains:
            branches.add(chain)
        uses = _Newer(len(chains))
        distances: list[int] = []
        runs: list[int] = []
        usable = ((prompts - 1) // self._block_size).tolist()
        for row, (chain, most) in enumerate(zip(chains, usable, strict=True)):
            for user, begin, end in branches.use(chain, row):
                # The row's own earlier blocks were used more recently, too, and have been taken off.
                distances.append(uses.newer_than(user) + begin)
                runs.append(max(0, min(end, most) - begin))
                uses.add(user, begin - end)
            uses.add(row, len(chain))
        self._distance = np.array(distances, dtype=np.int64)
        self._run = np.array(runs, dtype=np.int64)

    def hits(self, capacity: int | None = None) -> HitCount:
        """Return the hits over the whole workload, from an empty pool; None is an infinite one."""
        if capacity is not None:
            whole("capacity", capacity, 0, _NEVER)
        run = self._run
        held = int((run if capacity is None else np.clip(capacity - self._distance, 0, run)).sum())
        return HitCount(self._blocks, held, self._prompt_tokens, held * self._block_size)


def _chain(workload: Workload, row: int) -> npt.NDArray[np.uint64]:
    """Return the hashes of a prompt and of its answer."""
    prompt, answer = workload.prompt(row), workload.answer(row)
    return np.concatenate([prompt, answer]) if len(answer) else prompt


class _Branches:
    """The tree that rows of chained hashes form, cut where two part and where one ends.

    An equal hash means an equal whole prefix, so the first hash of a branch names it, and where a
    row leaves a branch can be found by halving. Who uses a branch uses those before it, so along
    a row the last users can only get older.
    """

    def __init__(self) -> None:
        self._branches: dict[int, npt.NDArray[np.uint64]] = {}
        self._last: dict[int, int] = {}

    def add(self, row: npt.NDArray[np.uint64]) -> None:
        """Cut the tree so that a row consists of whole branches."""
        at = 0
        while at < len(row):
            first = int(row[at])
            branch = self._branches.get(first)
            if branch is None:
                self._branches[first] = row[at:]
                return
            same = _common(branch, row[at : at + len(branch)])
            if same < len(branch):
                self._branches[first] = branch[:same]
                self._branches[int(branch[same])] = branch[same:]
            at += same

    def use(self, row: npt.NDArray[np.uint64], user: int) -> Iterator[tuple[int, int, int]]:
        """Yield the last users of a row's blocks, without new blocks, and make the row their last user."""
        at = begin = 0
        owner: int | None = None
        while at < len(row):
            first = int(row[at])
            last = self._last.get(first)
            self._last[first] = user
            if last != owner:
                if owner is not None:
                    yield owner, begin, at
                owner, begin = last, at
            at += len(self._branches[first])
        if owner is not None:
            yield owner, begin, at


def _common(one: npt.NDArray[np.uint64], other: npt.NDArray[np.uint64]) -> int:
    """Return how many hashes two chains share; they share the first."""
    same, differ = 1, min(len(one), len(other)) + 1
    if one[differ - 2] == other[differ - 2]:
        return differ - 1
    while same + 1 < differ:
        middle = (same + differ) // 2
        if one[middle - 1] == other[middle - 1]:
            same = middle
        else:
            differ = middle
    return same


class _Newer:
    """A Fenwick tree of the blocks that each request was the last to use."""

    def __init__(self, requests: int) -> None:
        self._sums = [0] * (requests + 1)
        self._total = 0

    def newer_than(self, request: int) -> int:
        """Return how many blocks later requests were the last to use."""
        newer, place, sums = self._total, request + 1, self._sums
        while place:
            newer -= sums[place]
            place &= place - 1
        return newer

    def add(self, request: int, blocks: int) -> None:
        """Change the blocks of a request."""
        self._total += blocks
        place, sums = request + 1, self._sums
        while place < len(sums):
            sums[place] += blocks
            place += place & -place


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
