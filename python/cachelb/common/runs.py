"""Runs of attachable objects: one router at a time, and a new run in a forked child."""

from __future__ import annotations

import os
from typing import Generic, Protocol, TypeVar


class Run(Protocol):
    """One run of an object, from start to stop."""

    pid: int

    def stop(self) -> None:
        """Stop it, and wait for that."""
        ...


_R = TypeVar("_R", bound=Run)


class Runs(Generic[_R]):
    """The current run of an object with a thread, and runs that a fork left to the parent.

    `latest` is the run begun last, in this process or, right after a fork, in its parent; None once stopped.
    """

    def __init__(self) -> None:
        self.latest: _R | None = None
        self._abandoned: list[_R] = []

    def is_here(self) -> bool:
        """Return whether it runs in this process."""
        return self.latest is not None and self.latest.pid == os.getpid()

    def claim(self, owner: object) -> bool:
        """Make room for another run; return whether this is a forked child, where the previous one was the parent's."""
        if self.is_here():
            name = type(owner).__name__
            raise RuntimeError(f"this {name} runs already: make one {name} per router")
        if self.latest is None:
            return False
        # The parent's sockets and files are kept unused, since collecting them would close them.
        self._abandoned.append(self.latest)
        self.latest = None
        return True

    def stop(self) -> _R | None:
        """End and return the run if it belongs to this process. Idempotent."""
        run, here = self.latest, self.is_here()
        self.latest = None
        if run is None or not here:
            return None
        run.stop()
        return run
