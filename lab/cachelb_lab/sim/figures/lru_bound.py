"""The hit rate of one LRU pool, at every capacity at once.

A fleet cannot cache more than one pool that holds all its memory and sees every request, so that
pool's hit rate is the yardstick for a routing policy. LRU is not optimal: a partitioned fleet can
pass the bound slightly.

One pass computes, for every block, how many blocks were used more recently than it (its stack
distance); a block is a hit at every capacity above that. A Fenwick tree over points of use counts
them: O(log n) per reference of a workload, whatever the block size, since blocks that all prompts have or
lack together move together: those of one branch of the tree that the prompts form.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cachelb.common.arguments import whole
from cachelb_lab.sim.workloads import Workload

_NEVER = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True)
class HitCount:
    """Hits of one cache over one trace."""

    blocks: int  # looked up
    hit_blocks: int  # of these, held
    prompt_tokens: int  # of all prompts, outside counted blocks too
    hit_tokens: int  # in the blocks that were held

    @property
    def token_rate(self) -> float:
        """Return the held share of the prompt tokens; 0 without tokens."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


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
    shortest = min(len(one), len(other))
    if one[shortest - 1] == other[shortest - 1]:
        return shortest
    return bisect_left(range(shortest), True, key=lambda at: bool(one[at] != other[at]))  # noqa: FBT003 - what is searched


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
