"""The guard against answers that lack most workers at once."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

MOST_WORKERS: Final = 4096
"""Workers that one source may find."""


class DropGuard:
    """Holds workers back that answers within `wait_s` of each other would drop, if they are more than half.

    Workers dropped in the last `wait_s` count, so that a fleet is not lost in small steps either. A drop that was held
    back is made by an answer that comes `wait_s` later, or more, and still asks for it.
    """

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._dropped: dict[str, float] = {}  # when, by worker, oldest first
        self._since_s: float | None = None
        self.held: frozenset[str] = frozenset()
        """The workers now."""

        self.waits = 0
        """Times that a drop was held back."""

    def answer(self, found: Collection[str], now_s: float) -> frozenset[str]:
        """Take an answer, and return the workers to keep."""
        found = frozenset(found)
        self._forget(now_s)
        known = self.held | self._dropped.keys()
        waited = self._since_s is not None and now_s >= self._since_s + self._wait_s
        is_most = self._wait_s > 0 and 2 * len(known - found) > len(known)
        if is_most and not waited and len(self.held | found) <= MOST_WORKERS:
            if self._since_s is None:
                self._since_s = now_s
                self.waits += 1
            self.held |= found
            return self.held
        for worker in self.held - found:
            self._dropped.pop(worker, None)
            self._dropped[worker] = now_s
        if is_most:  # confirmed: the next drop is measured against what is left
            self._dropped.clear()
        self._since_s = None
        self.held = found
        return found

    def confirm_in_s(self, now_s: float) -> float | None:
        """Return the seconds until an answer can confirm a drop; None if none is held back."""
        return None if self._since_s is None else max(0.0, self._since_s + self._wait_s - now_s)

    def _forget(self, now_s: float) -> None:
        for worker, at_s in list(self._dropped.items()):
            if at_s + self._wait_s > now_s and len(self._dropped) <= MOST_WORKERS:
                break
            del self._dropped[worker]
