"""How far the loads that routers saw lie from the true ones."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

Changes = Sequence[tuple[float, str, int]]
Looks = Sequence[tuple[float, dict[str, int]]]


def is_near(seen: int, true: int) -> bool:
    """Return whether a load is seen well enough: within one request or a tenth."""
    return abs(seen - true) <= max(1.0, 0.1 * true)


@dataclass
class Views:
    """Actions and views of several routers.

    Attributes:
        changes: By router, times at which it booked (1) or ended (-1) a request, with the worker.
        looks: By router, the loads as it saw them, with the time.
    """

    changes: Sequence[Changes]
    looks: Sequence[Looks]

    def ages(self, *, most_s: float = 2.0, exact: bool = False) -> list[float]:
        """Return how old the truth is that each view of a worker shows, in seconds.

        That is the shortest time ago at which the true load was near the one seen, or exactly that; infinite if it was
        not within `most_s`.
        """
        is_seen = int.__eq__ if exact else is_near
        truth = {name: _Truth(changes) for name, changes in _by_worker(self.changes).items()}
        found = []
        for looks in self.looks:
            for at_s, loads in looks:
                for name, seen in loads.items():
                    true = truth.get(name)
                    if true is not None:
                        found.append(true.age(seen, at_s, most_s, is_seen))
                    else:
                        found.append(0.0 if is_seen(seen, 0) else float("inf"))
        return found

    def share_within(self, seconds: float) -> float:
        """Return the part of the views that were true at most so many seconds ago."""
        ages = self.ages(most_s=seconds)
        return sum(age <= seconds for age in ages) / len(ages)


def _by_worker(changes: Iterable[Changes]) -> dict[str, list[tuple[float, int]]]:
    found: dict[str, list[tuple[float, int]]] = {}
    for each in changes:
        for at_s, name, change in each:
            found.setdefault(name, []).append((at_s, change))
    return found


class _Truth:
    """The load of one worker: a value that holds from each change to the next one."""

    def __init__(self, changes: list[tuple[float, int]]) -> None:
        self._at_s = [float("-inf")]
        self._load = [0]
        for at_s, change in sorted(changes):
            self._at_s.append(at_s)
            self._load.append(self._load[-1] + change)

    def age(self, seen: int, at_s: float, most_s: float, is_seen: Callable[[int, int], bool]) -> float:
        last = bisect_right(self._at_s, at_s) - 1
        first = max(0, bisect_left(self._at_s, at_s - most_s) - 1)
        for index in range(last, first - 1, -1):
            if is_seen(seen, self._load[index]):
                return 0.0 if index == last else at_s - self._at_s[index + 1]
        return float("inf")
