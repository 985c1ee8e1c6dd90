"""Values that several threads need, each made once and dropped with the last use of it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any


class Shared:
    """Values by key, each kept until its users have dropped it; `users` counts the drops to come.

    Example:
        >>> from collections import Counter
        >>> shared = Shared(Counter(["a", "a"]))
        >>> shared.take("a", lambda: [1]) is shared.take("a", lambda: [2])
        True
    """

    def __init__(self, users: Counter[Hashable]) -> None:
        self._left = users
        self._lock = threading.Lock()
        self._locks: dict[Hashable, threading.Lock] = {}
        self._made: dict[Hashable, Any] = {}

    def take(self, key: Hashable, make: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever is made
        """Return a value; while it is being made, other callers wait for it."""
        with self._lock:
            own = self._locks.setdefault(key, threading.Lock())
        with own:
            if key not in self._made:
                self._made[key] = make()
            return self._made[key]

    def drop(self, key: Hashable) -> None:
        """Drop a value on behalf of one user, whether it took it or not."""
        with self._lock:
            self._left[key] -= 1
            if not self._left[key]:
                self._made.pop(key, None)
                self._locks.pop(key, None)
