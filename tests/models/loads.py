"""Bookings of a fleet, as slowly as they can be written: every load is counted from the open requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cachelb import Router

BLOCK = 16


@dataclass(eq=False)
class Incarnation:
    """One life of one candidate: a worker, or one rank of it."""

    name: str
    ready: bool = True
    draining: bool = False


@dataclass(eq=False)
class Booking:
    """One request on one candidate."""

    where: Incarnation
    prompt: int
    uncached: int
    tokens: int | None = None
    """Output tokens after the first one, None before it."""
    is_open: bool = True

    def first_token(self) -> None:
        if self.is_open and self.tokens is None:
            self.tokens = 0

    def more(self, n: int) -> None:
        self.first_token()
        if self.is_open and self.tokens is not None:
            self.tokens += n


@dataclass
class NaiveFleet:
    """Candidates by name, and every request there ever was."""

    workers: dict[str, list[str]] = field(default_factory=dict)
    """Names of the candidates of every registered worker."""
    alive: dict[str, Incarnation] = field(default_factory=dict)
    bookings: list[Booking] = field(default_factory=list)

    def add(self, key: str, ranks: int) -> None:
        names = [key] if ranks == 1 else [f"{key}#{rank}" for rank in range(ranks)]
        for name in self.workers.get(key, []):
            if name not in names:
                del self.alive[name]
        for name in names:
            known = self.alive.setdefault(name, Incarnation(name))
            if known.draining:
                known.draining, known.ready = False, True
        self.workers[key] = names

    def remove(self, key: str) -> None:
        names = self.workers.pop(key, None)
        if names is None:
            names = [name for name, one in self.alive.items() if one.draining and name.split("#")[0] == key]
        for name in names:
            del self.alive[name]

    def drain(self, key: str) -> None:
        for name in self.workers.pop(key, []):
            self.alive[name].draining = True
        self._leave()

    def set_ready(self, key: str, *, ready: bool) -> None:
        for name in self.workers[key]:
            self.alive[name].ready = ready

    def sync(self, keys: list[str]) -> None:
        for key in set(self.workers) - set(keys):
            self.remove(key)
        for key in keys:
            if key not in self.workers:
                self.add(key, 1)

    def candidates(self, among: list[str] | None, exclude: set[str]) -> set[str]:
        keys = [key for key in self.workers if (among is None or key in among) and key not in exclude]
        return {key for key in keys if any(self.alive[name].ready for name in self.workers[key])}

    def book(self, key: str, rank: int | None, prompt: int, uncached: int) -> Booking:
        booking = Booking(self.alive[key if rank is None else f"{key}#{rank}"], prompt, uncached)
        self.bookings.append(booking)
        return booking

    def close(self, booking: Booking) -> None:
        booking.is_open = False
        self._leave()

    def _leave(self) -> None:
        """Let those go that drained."""
        loads = self.loads()
        for name in [name for name, one in self.alive.items() if one.draining]:
            if loads[name][0] == 0:
                del self.alive[name]

    def loads(self) -> dict[str, tuple[int, int, int]]:
        """Requests in flight, tokens without a first token, and blocks past it, by candidate."""
        found = {}
        for name, one in self.alive.items():
            mine = [booking for booking in self.bookings if booking.is_open and booking.where is one]
            pending = sum(booking.uncached for booking in mine if booking.tokens is None)
            blocks = sum((booking.prompt + booking.tokens) // BLOCK for booking in mine if booking.tokens is not None)
            found[name] = (len(mine), pending, blocks)
        return found

    def open_requests(self) -> int:
        return sum(booking.is_open for booking in self.bookings)


def indexed_blocks(router: Router[str], key: str) -> int:
    """Count the blocks of a worker in the index, of all its ranks and media."""
    return sum(sum(worker.index_blocks.values()) for worker in router.stats().workers if worker.key == key)
