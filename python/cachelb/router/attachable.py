"""Sources and sinks that a router starts and stops with itself."""

from __future__ import annotations

import logging
import os
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection

    from cachelb.router.router import Router
    from cachelb.stats.polls import WorkerPolls
    from cachelb.types import StateStats

_log = logging.getLogger("cachelb.router")


class Attachable(Protocol):
    """Anything `Router.attach` accepts: a source of load, events or shared state, or a sink of records."""

    def start(self, router: Router[Any], /) -> None:
        """Start a thread; called again in a forked child, which has no threads, once it uses the router."""
        ...

    def stop(self) -> None:
        """Stop. Idempotent."""
        ...


class Sharing(Protocol):
    """The attached exchange with other routers, and the process it runs in."""

    @property
    def pid(self) -> int:
        """Id of the process that owns the thread."""
        ...

    def stats(self) -> StateStats:
        """Return the counters of sent and received state."""
        ...


class Sources:
    """The sources attached to one router, in order; any thread may attach, detach and close."""

    def __init__(self) -> None:
        """Begin without a source."""
        # Keyed by a number, so that each step is one operation and needs no lock: a finalizer may close anywhere.
        self._attached: dict[int, Attachable] = {}
        self._numbers = count()

    def attach(self, source: Attachable, router: Router[Any]) -> None:
        """Start a source."""
        _refuse_class("attach", source)
        if not all(callable(getattr(source, name, None)) for name in ("start", "stop")):
            found = type(source).__name__
            raise TypeError(f"a source must have start(router) and stop(), like ZmqSource or SnapshotFile, not {found}")
        # Registered first, so that a concurrent close of the router stops it.
        number = next(self._numbers)
        self._attached[number] = source
        try:
            source.start(router)
        except BaseException:
            self._attached.pop(number, None)
            raise
        if number not in self._attached:
            source.stop()

    def detach(self, source: Attachable) -> None:
        """Stop a source."""
        _refuse_class("detach", source)
        numbers = [number for number, each in list(self._attached.items()) if each is source]
        if not numbers or self._attached.pop(numbers[-1], None) is None:
            raise ValueError(f"this {type(source).__name__} is not attached to this router")
        source.stop()

    def close(self) -> None:
        """Stop all sources, the last one first; an error is raised after all were stopped."""
        failed: BaseException | None = None
        while True:
            try:
                _, source = self._attached.popitem()
            except KeyError:  # no check before: two threads may close
                break
            try:
                source.stop()
            except Exception as error:  # noqa: BLE001 - raised below
                _log.exception("%s could not be stopped", type(source).__name__)
                failed = failed or error
        if failed is not None:
            raise failed

    def polls(self, workers: Collection[str]) -> dict[str, WorkerPolls]:
        """Return how the polling of these workers goes; a source ends that of a removed one at its next look."""
        found: dict[str, WorkerPolls] = {}
        for source in list(self._attached.values()):
            found |= getattr(source, "_polls", dict)()
        return {worker: polls for worker, polls in found.items() if worker in workers}

    def start_in_child(self, router: Router[Any]) -> None:
        """Restart all sources: a fork does not copy threads."""
        for source in list(self._attached.values()):
            try:
                source.start(router)
            except Exception:  # noqa: BLE001 - logged; it must not fail a selection or the other sources
                _log.exception("%s could not start anew in process %d", type(source).__name__, os.getpid())


def _refuse_class(method: str, source: object) -> None:
    if isinstance(source, type):
        name = source.__name__
        raise TypeError(f"{method} takes an instance, not the class {name}: {method}({name}(...))")
