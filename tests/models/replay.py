"""The truth about the truth: what workers hold, recomputed from the whole log of operations.

`cachelb.testing.NaiveTracker` keeps state per block; this keeps only who holds what, and derives every recency and
deadline from the log of uses. Blocks are named by the tokens of their whole path, so no hash takes part.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

Path = tuple[int, ...]


@dataclass
class _Use:
    """A use of the path ``tail`` as the ``order``-th of all; ``covers`` shrinks when blocks leave."""

    order: int
    tail: Path
    ends_ms: float
    covers: set[Path]


@dataclass
class _Shelf:
    """One worker's blocks in one medium."""

    held: set[Path] = field(default_factory=set)
    log: list[_Use] = field(default_factory=list)

    def needed(self) -> set[Path]:
        return {path[:depth] for path in self.held for depth in range(1, len(path) + 1)}

    def uses(self, block: Path) -> list[_Use]:
        return [use for use in self.log if block in use.covers]

    def forget(self) -> None:
        """A block that left is new when it comes back: uses of its former life do not count."""
        needed = self.needed()
        for use in self.log:
            use.covers &= needed


class Replay:
    """Same operations as `NaiveTracker`, on token paths with one token per block."""

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self.now_ms = 0.0
        self.order = 0
        self.shelves: dict[str, dict[str, _Shelf]] = {}

    def known(self) -> set[Path]:
        return {path for media in self.shelves.values() for shelf in media.values() for path in shelf.needed()}

    def register(self, worker: str) -> None:
        self.shelves.setdefault(worker, {medium: _Shelf() for medium in ("gpu", "cpu", "disk")})

    def insert(self, worker: str, prompt: Sequence[int], *, start: int, medium: str, ttl_s: float | None) -> int:
        self.register(worker)
        prompt = tuple(prompt)[: start + self.cap]
        if len(prompt) <= start or (start > 0 and prompt[:start] not in self.known()):
            return 0
        shelf = self.shelves[worker][medium]
        chain = {prompt[:depth] for depth in range(start + 1, len(prompt) + 1)}
        new = len(chain - shelf.held)
        shelf.held |= chain
        self.order += 1
        ends_ms = math.inf if ttl_s is None else self.now_ms + ttl_s * 1000
        covers = {prompt[:depth] for depth in range(1, len(prompt) + 1)}
        shelf.log.append(_Use(self.order, prompt, ends_ms, covers))
        self.evict(shelf, self.cap)
        return new

    def evict(self, shelf: _Shelf, limit: int) -> None:
        while len(shelf.held) > limit:
            leaves = [
                block
                for block in shelf.held
                if not any(other != block and other[: len(block)] == block for other in shelf.held)
            ]
            oldest = min(max(use.order for use in shelf.uses(block)) for block in leaves)
            victims = [block for block in leaves if max(use.order for use in shelf.uses(block)) == oldest]
            assert len(victims) == 1, "the leaf order is total"
            shelf.held.remove(victims[0])
            shelf.forget()

    def remove(self, worker: str, blocks: Iterable[Path], medium: str | None) -> int:
        gone = 0
        for name, shelf in self.shelves.get(worker, {}).items():
            if medium in (None, name):
                gone += len(shelf.held & set(blocks))
                shelf.held -= set(blocks)
                shelf.forget()
        return gone

    def advance(self, seconds: float) -> None:
        self.now_ms += seconds * 1000
        for media in self.shelves.values():
            for shelf in media.values():
                shelf.held = {
                    block for block in shelf.held if max(use.ends_ms for use in shelf.uses(block)) > self.now_ms
                }
                shelf.forget()

    def overlaps(self, prompt: Sequence[int]) -> dict[str, int]:
        found = {}
        for worker, media in self.shelves.items():
            held = set().union(*(shelf.held for shelf in media.values()))
            depth = 0
            while depth < len(prompt) and tuple(prompt[: depth + 1]) in held:
                depth += 1
            if depth:
                found[worker] = depth
        return found

    def counts(self) -> dict[str, int]:
        return {
            worker: len(set().union(*(shelf.held for shelf in media.values())))
            for worker, media in self.shelves.items()
        }
