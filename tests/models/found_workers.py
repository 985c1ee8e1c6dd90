"""Slow, obvious models of the guard and of the union of sources."""

from __future__ import annotations

from collections.abc import Iterable


class GuardModel:
    """Keeps all that ever was: the set that was held at each moment."""

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s
        self.history: list[tuple[float, set[str]]] = [(float("-inf"), set())]
        self.held_back_since: float | None = None

    @property
    def held(self) -> set[str]:
        return self.history[-1][1]

    def answer(self, found: set[str], now_s: float) -> set[str]:
        # Workers held at any moment after `now - wait`: a set counts until the next one replaces it.
        ends = [at_s for at_s, _ in self.history[1:]] + [now_s]
        recent = {
            w for (_, held), end in zip(self.history, ends, strict=True) if end > now_s - self.wait_s for w in held
        }
        known = recent | self.held
        is_most = 2 * len(known - found) > len(known) and self.wait_s > 0
        if not is_most:
            self.held_back_since = None
            self.history.append((now_s, set(found)))
        elif self.held_back_since is None or now_s < self.held_back_since + self.wait_s:
            self.held_back_since = now_s if self.held_back_since is None else self.held_back_since
            self.history.append((now_s, self.held | found))
        else:
            self.held_back_since = None
            self.history = [(now_s, set(found))]
        return self.held


class UnionModel:
    """The workers of a router by their owners: sources, or the user."""

    def __init__(self) -> None:
        self.by_hand: set[str] = set()
        self.by_source: dict[int, set[str]] = {}
        self.left: set[str] = set()

    def keys(self) -> set[str]:
        return self.by_hand.union(self.left, *self.by_source.values())

    def finds(self, source: int, found: Iterable[str]) -> None:
        before = self.keys()
        # The first that registered a worker owns it.
        own = {w for w in found if w not in self.by_hand or w not in before}
        self.by_source[source] = own
        self.left -= own

    def adds(self, worker: str) -> None:
        if worker not in self.keys():
            self.by_hand.add(worker)

    def leaves(self, source: int) -> None:
        own = self.by_source.pop(source, set())
        self.left |= own - set().union(*self.by_source.values())

    def syncs(self, workers: set[str]) -> None:
        found = set().union(*self.by_source.values())
        self.left &= workers
        self.by_hand = {w for w in workers if w not in found and w not in self.left}
