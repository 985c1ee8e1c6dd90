"""What a router starts and stops with itself."""

from __future__ import annotations

import logging
import os
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from cachelb.router.router import Router
    from cachelb.types import StateStats

_log = logging.getLogger("cachelb.router")


class Attachable(Protocol):
    """What `Router.attach` takes: a source of load, events or shared state, or a sink of records."""

    def start(self, router: Router[Any], /) -> None:
        """Begin, in a thread of its own; again in the child of a fork, which has none, once it uses the router."""
        ...

    def stop(self) -> None:
        """End; idempotent."""
        ...


class Sharing(Protocol):
    """What trades with other routers, and the process it does so in."""

    @property
    def pid(self) -> int:
        """The process whose thread it has."""
        ...

    def stats(self) -> StateStats:
        """Count what was told and heard."""
        ...


class Sources:
    """What is attached to one router, in the order of attaching; any thread may attach, detach and close."""

    def __init__(self) -> None:
        """Begin with nothing."""
        # By a number, so that each step is one operation and needs no lock: a finalizer may close anywhere.
        self._attached: dict[int, Attachable] = {}
        self._numbers = count()

    def attach(self, source: Attachable, router: Router[Any]) -> None:
        """Start a source."""
        _refuse_class("attach", source)
        if not all(callable(getattr(source, name, None)) for name in ("start", "stop")):
            found = type(source).__name__
            raise TypeError(f"a source must have start(router) and stop(), like ZmqSource or SnapshotFile, not {found}")
        # First, so that whoever closes the router while this waits ends it.
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
        """Stop all, the last one first. What one of them raises is raised once all were stopped."""
        failed: BaseException | None = None
        while True:
            try:
                _, source = self._attached.popitem()
            except KeyError:  # not asked before: two threads may close
                break
            try:
                source.stop()
            except Exception as error:  # noqa: BLE001 - raised below
                _log.exception("%s could not be stopped", type(source).__name__)
                failed = failed or error
        if failed is not None:
            raise failed

    def start_in_child(self, router: Router[Any]) -> None:
        """Restart all sources: a fork does not copy threads."""
        for source in list(self._attached.values()):
            try:
                source.start(router)
            except Exception:  # noqa: BLE001 - logged; a selection is not to fail for it, nor the other sources
                _log.exception("%s could not start anew in process %d", type(source).__name__, os.getpid())


def _refuse_class(method: str, source: object) -> None:
    if isinstance(source, type):
        name = source.__name__
        raise TypeError(f"{method} takes an instance, not the class {name}: {method}({name}(...))")
