"""Tasks of several threads, and values that they share, each made once and dropped with the last use of it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
U = TypeVar("U")


class StoppedError(Exception):
    """Another task has failed, or the caller is interrupted."""


class Batch:
    """Tasks with values that they share; `users` counts their uses, and `total` is the work of all.

    After an error, tasks that have begun end with their next word about progress.
    """

    def __init__(self, users: Counter[Hashable], total: float, progress: Callable[[float], object] | None) -> None:
        self.shared = Shared(users)
        self._total, self._progress = total, progress
        self._done = 0.0
        self._lock = threading.Lock()
        self._stopped = False

    def each(self, threads: int, do: Callable[[T], U], tasks: Sequence[T], keep: Callable[[T, U], object]) -> None:
        """Run tasks, several at a time, and keep their results in order."""
        pool = ThreadPoolExecutor(threads)
        try:
            for task, future in [(task, pool.submit(do, task)) for task in tasks]:
                keep(task, future.result())
        except BaseException:
            self._stopped = True
            raise
        finally:
            pool.shutdown(cancel_futures=True)

    def report(self, work: float = 0.0) -> None:
        """Pass on that work is done, and raise `StoppedError` if there is no use in more."""
        if self._stopped:
            raise StoppedError
        if self._progress is not None:
            with self._lock:
                self._done += work
                self._progress(min(1.0, self._done / self._total))


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
