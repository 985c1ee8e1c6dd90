"""The slow, obvious truth about which worker holds which leading blocks.

Everything is a dictionary of sets and a linear scan. Recency is kept by touching every block of a path, eviction
searches the whole held set for its victim, and the blocks known are recomputed after every removal. Nothing here is
fast, and nothing here shares code with the native index except the hash function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cachelb._core import Namespace, hash_blocks
from cachelb.common.arguments import number

MEDIA: Final = ("gpu", "cpu", "disk")


class ManualClock:
    """A manual clock in seconds.

    Args:
        start_s: The first time.

    Example:
        >>> clock = ManualClock()
        >>> clock.advance(2.5)
        >>> clock()
        2.5
    """

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = number("start_s", start_s, least=0.0)

    def __call__(self) -> float:
        """Return the time.

        Returns:
            The seconds shown.
        """
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Move the clock forward.

        Args:
            seconds: By how much; a monotonic clock refuses to go back.

        Raises:
            ValueError: ``seconds`` is negative.
        """
        self._now_s += number("seconds", seconds, least=0.0)


class Best(NamedTuple):
    """Everything `find_best_worker` may answer: any worker of ``workers`` is right.

    Example:
        >>> from cachelb.testing import NaiveTracker
        >>> oracle = NaiveTracker(block_size=16)
        >>> oracle.record_request(range(32), "gpu0")
        2
        >>> best = oracle.best_workers(range(64))
        >>> sorted(best.workers), best.matched_blocks, best.total_blocks
        (['gpu0'], 2, 4)
    """

    workers: frozenset[str]
    """All workers that hold the most leading blocks; empty if no worker holds the first one."""
    matched_blocks: int
    """How many they hold."""
    total_blocks: int
    """Full blocks of the prompt."""


class Found(NamedTuple):
    """The oracle's own answer to `find_best_worker`, shaped like `cachelb.index.Match`.

    Example:
        >>> from cachelb.testing import NaiveTracker
        >>> oracle = NaiveTracker(block_size=16)
        >>> oracle.record_request(range(32), "gpu0")
        2
        >>> oracle.find_best_worker(range(64))
        Found(worker='gpu0', matched_blocks=2, total_blocks=4)
    """

    worker: str
    """One of the workers that hold the most leading blocks, the first registered."""
    matched_blocks: int
    """How many it holds."""
    total_blocks: int
    """Full blocks of the prompt."""


@dataclass
class _Holdings:
    """The blocks of one worker in one medium.

    ``last`` and ``deadline`` also cover the blocks that are not held but lie above a held one.
    """

    held: set[int] = field(default_factory=set)
    last: dict[int, int] = field(default_factory=dict)
    deadline: dict[int, float] = field(default_factory=dict)


class NaiveTracker:
    """`cachelb.index.BlockTracker` by brute force: same operations, same answers, no cleverness.

    Drive both with the same operations and compare with `assert_agrees`. The rules, in full:

    * A worker's overlap is the number of leading blocks it holds in any medium.
    * Recording touches the whole path from the root. While a medium of a worker holds more blocks than the cap, the
      block goes whose latest use (through itself or any block behind it) is oldest, the deepest first among equals.
    * A stored chain without a known parent is dropped and counted in `orphans`. A block whose parent the worker does
      not hold is stored all the same, but does not count as a leading block until the gap is filled.
    * A chain longer than the cap keeps its first blocks. A chain stops before a hash that is known behind
      another parent, or repeats inside the chain (`conflicts`).
    * A block expires when the latest deadline of all uses through it has come; a use without one never expires.
    * A block known behind another parent than the one asked for is another block.
    * Asking changes nothing.

    Args:
        block_size: Tokens per block.
        max_blocks_per_worker: Cap of each medium of each worker.
        seed: Seed of the block hashes.
        clock: Seconds now; only needed with ``ttl_s``.

    Example:
        >>> oracle = NaiveTracker(block_size=2)
        >>> oracle.record_request([1, 2, 3, 4], "gpu0")
        2
        >>> oracle.record_request([1, 2, 9, 9], "gpu1")
        2
        >>> oracle.overlaps([1, 2, 3, 4, 5])
        {'gpu0': 2, 'gpu1': 1}
    """

    def __init__(
        self,
        *,
        block_size: int = 16,
        max_blocks_per_worker: int = 100_000,
        seed: int = 1337,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.block_size = block_size
        self.cap = max_blocks_per_worker
        self.seed = seed
        self.orphans = 0
        """Stores dropped because no worker had their parent."""
        self.conflicts = 0
        """Chains cut short before a hash known behind another parent."""
        self._clock = clock if clock is not None else ManualClock()
        self._uses = 0
        self._parents: dict[int, int | None] = {}
        self._workers: dict[str, dict[str, _Holdings]] = {}

    # --- writing ---------------------------------------------------------------------------------------------------

    def record_request(
        self,
        tokens: Sequence[int],
        worker: str,
        *,
        namespace: str | Namespace | None = None,
        ttl_s: float | None = None,
    ) -> int:
        """Record that ``worker`` now holds the prompt's blocks, at most the cap's first ones.

        Args:
            tokens: The prompt.
            worker: The worker that serves it; registered if new.
            namespace: Identity of the prompt besides its tokens.
            ttl_s: Seconds until the entry ends, ``None`` for never.

        Returns:
            Blocks newly held.
        """
        return self._insert(worker, "gpu", None, self.hashes(tokens, namespace), ttl_s)

    def store(
        self,
        worker: str,
        hashes: Iterable[int],
        *,
        parent: int | None = None,
        medium: str = "gpu",
    ) -> int:
        """Store a chain of sequence hashes behind ``parent``, as engine events do.

        Args:
            worker: The worker that holds them; registered if new.
            hashes: The chain, in order.
            parent: Sequence hash before the chain, ``None`` for the root.
            medium: Where the blocks lie; a chain in an unknown place is dropped.

        Returns:
            Blocks newly held in that medium, counted before the cap was enforced.
        """
        return self._insert(worker, medium, parent, list(hashes), None) if medium in MEDIA else 0

    def remove(self, worker: str, hashes: Iterable[int], *, medium: str | None = None) -> int:
        """Remove single blocks, wherever they lie in their chain.

        Args:
            worker: The worker that drops them.
            hashes: Which; unknown ones are ignored.
            medium: From where; ``None`` or an unknown place means everywhere.

        Returns:
            How many left, counted in every medium they left.
        """
        self.expire()
        media = self._workers.get(worker, {})
        named = set(hashes)
        removed = 0
        for name, holdings in media.items():
            if medium == name or medium not in MEDIA:
                removed += len(holdings.held & named)
                holdings.held -= named
        self._forget_unneeded()
        return removed

    def clear(self, worker: str) -> int:
        """Drop every block of the worker, which stays registered.

        Args:
            worker: Whose blocks.

        Returns:
            Blocks dropped.
        """
        self.expire()
        dropped = self.block_count(worker)
        if worker in self._workers:
            self._workers[worker] = {name: _Holdings() for name in MEDIA}
        self._forget_unneeded()
        return dropped

    def evict_worker(self, worker: str, max_blocks: int) -> int:
        """Evict the least recently used leaves of each medium down to ``max_blocks``.

        Args:
            worker: Whose blocks.
            max_blocks: How many may stay in each medium.

        Returns:
            How many went, counted in every medium they left.
        """
        self.expire()
        media = self._workers.get(worker, {}).values()
        before = sum(len(holdings.held) for holdings in media)
        for holdings in media:
            self._evict(holdings, max_blocks)
        self._forget_unneeded()
        return before - sum(len(holdings.held) for holdings in media)

    def remove_worker(self, worker: str) -> int:
        """Forget the worker and all it holds.

        Args:
            worker: The worker that leaves.

        Returns:
            Blocks dropped.
        """
        dropped = self.clear(worker)
        self._workers.pop(worker, None)
        return dropped

    def expire(self) -> int:
        """Drop entries past their deadline; every other operation does this first.

        Returns:
            How many went, counted in every medium they left.
        """
        now_ms = self._now_ms()
        dropped = 0
        for media in self._workers.values():
            for holdings in media.values():
                over = {block for block in holdings.held if holdings.deadline[block] <= now_ms}
                holdings.held -= over
                dropped += len(over)
        if dropped:
            self._forget_unneeded()
        return dropped

    # --- asking ----------------------------------------------------------------------------------------------------

    def hashes(self, tokens: Sequence[int], namespace: str | Namespace | None = None) -> list[int]:
        """Name the prompt's full blocks.

        Args:
            tokens: The prompt.
            namespace: Identity of the prompt besides its tokens.

        Returns:
            One sequence hash per full block.
        """
        return [int(value) for value in hash_blocks(tokens, self.block_size, namespace=namespace, seed=self.seed)]

    def overlaps(
        self, tokens: Sequence[int], *, among: Iterable[str] | None = None, namespace: str | Namespace | None = None
    ) -> dict[str, int]:
        """Count the leading blocks every worker holds.

        Args:
            tokens: The prompt.
            among: Restrict to these workers; unknown names are ignored.
            namespace: Identity of the prompt besides its tokens.

        Returns:
            Every worker with at least one.
        """
        return self.overlaps_of_hashes(self.hashes(tokens, namespace), among=among)

    def overlaps_of_hashes(self, hashes: Iterable[int], *, among: Iterable[str] | None = None) -> dict[str, int]:
        """Count the leading blocks of a chain every worker holds, by scanning it block by block.

        Args:
            hashes: The chain, in order.
            among: Restrict to these workers; unknown names are ignored.

        Returns:
            Every worker with at least one.
        """
        now_ms = self._now_ms()
        wanted = list(self._workers) if among is None else [name for name in self._workers if name in set(among)]
        chain = list(hashes)
        found = {}
        for worker in wanted:
            depth = 0
            above = None
            for block in chain:
                if not self._holds(worker, block, now_ms) or self._parents[block] != above:
                    break
                depth += 1
                above = block
            if depth:
                found[worker] = depth
        return found

    def best_workers(
        self, tokens: Sequence[int], *, among: Iterable[str] | None = None, namespace: str | Namespace | None = None
    ) -> Best:
        """Find every worker that holds the most leading blocks.

        Args:
            tokens: The prompt.
            among: Restrict to these workers; unknown names are ignored.
            namespace: Identity of the prompt besides its tokens.

        Returns:
            The workers, the depth and the prompt's full blocks.
        """
        found = self.overlaps(tokens, among=among, namespace=namespace)
        depth = max(found.values(), default=0)
        workers = frozenset(name for name, blocks in found.items() if blocks == depth)
        return Best(workers, depth, len(tokens) // self.block_size)

    def find_best_worker(
        self, tokens: Sequence[int], *, among: Iterable[str] | None = None, namespace: str | Namespace | None = None
    ) -> Found | None:
        """Find a worker that holds the most leading blocks; `best_workers` gives all that tie.

        Args:
            tokens: The prompt.
            among: Restrict to these workers; unknown names are ignored.
            namespace: Identity of the prompt besides its tokens.

        Returns:
            The first registered of them, ``None`` if no worker holds the first block.
        """
        best = self.best_workers(tokens, among=among, namespace=namespace)
        first = next((name for name in self._workers if name in best.workers), None)
        return None if first is None else Found(first, best.matched_blocks, best.total_blocks)

    def block_count(self, worker: str | None = None) -> int:
        """Count the distinct blocks held.

        Args:
            worker: By whom; ``None`` for the sum over all workers.

        Returns:
            How many, 0 for an unknown worker.
        """
        if worker is None:
            return sum(self.block_count(name) for name in self._workers)
        return len(self.held(worker))

    def held(self, worker: str) -> set[int]:
        """List the blocks held.

        Args:
            worker: By whom.

        Returns:
            Their sequence hashes, over all media.
        """
        now_ms = self._now_ms()
        return {
            block
            for holdings in self._workers.get(worker, {}).values()
            for block in holdings.held
            if holdings.deadline[block] > now_ms
        }

    def workers(self) -> list[str]:
        """List the registered workers.

        Returns:
            Their names, in the order of registration.
        """
        return list(self._workers)

    def is_prefix_closed(self, worker: str) -> bool:
        """Return whether every block of the worker comes with the block before it.

        Args:
            worker: Whose blocks.

        Returns:
            Always true where only requests were recorded and blocks evicted.
        """
        held = self.held(worker)
        return all(self._parents[block] is None or self._parents[block] in held for block in held)

    # --- the rules -------------------------------------------------------------------------------------------------

    def _insert(self, worker: str, medium: str, parent: int | None, hashes: list[int], ttl_s: float | None) -> int:
        self.expire()
        media = self._workers.setdefault(worker, {name: _Holdings() for name in MEDIA})
        if parent is not None and parent not in self._parents:
            self.orphans += 1
            return 0
        chain: list[int] = []
        before = parent
        for block in hashes[: self.cap]:
            if block in chain or self._parents.get(block, before) != before:
                self.conflicts += 1
                break
            chain.append(block)
            before = block
        if not chain:
            return 0
        for block, above in zip(chain, [parent, *chain], strict=False):
            self._parents[block] = above
        holdings = media[medium]
        already = set(holdings.held)
        holdings.held.update(chain)
        deadline = math.inf if ttl_s is None else self._now_ms() + round(ttl_s * 1000)
        self._touch(holdings, chain[-1], deadline)
        self._evict(holdings, self.cap)
        self._forget_unneeded()
        return len(set(chain) - already)

    def _touch(self, holdings: _Holdings, tail: int, deadline: float) -> None:
        self._uses += 1
        for block in self._path(tail):
            holdings.last[block] = self._uses
            holdings.deadline[block] = max(deadline, holdings.deadline.get(block, -math.inf))

    def _evict(self, holdings: _Holdings, limit: int) -> None:
        while len(holdings.held) > limit:
            holdings.held.remove(
                min(holdings.held, key=lambda block: (holdings.last[block], -len(self._path(block)))),
            )

    def _path(self, tail: int) -> list[int]:
        path = [tail]
        while (above := self._parents[path[-1]]) is not None:
            path.append(above)
        return path

    def _forget_unneeded(self) -> None:
        """Prune blocks that are neither held nor above a held block, per medium."""
        known: set[int] = set()
        for media in self._workers.values():
            for holdings in media.values():
                needed = {above for block in holdings.held for above in self._path(block)}
                holdings.last = {block: use for block, use in holdings.last.items() if block in needed}
                holdings.deadline = {block: end for block, end in holdings.deadline.items() if block in needed}
                known |= needed
        self._parents = {block: above for block, above in self._parents.items() if block in known}

    def _holds(self, worker: str, block: int, now_ms: float) -> bool:
        return any(
            block in holdings.held and holdings.deadline[block] > now_ms for holdings in self._workers[worker].values()
        )

    def _now_ms(self) -> float:
        return math.floor(self._clock() * 1000)
