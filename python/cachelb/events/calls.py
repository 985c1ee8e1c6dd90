"""Calls of functions that may block, from an event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Final

_log = logging.getLogger("cachelb.events")

_NAME: Final = "cachelb-kv-fetch"


class Calls:
    """The threads of all callers of a loop; daemons, so that a call that hangs does not hold up the interpreter."""

    def __init__(self) -> None:
        self._threads: set[threading.Thread] = set()

    def start(self, work: Callable[[], None]) -> None:
        """Start a thread."""

        def run() -> None:
            try:
                work()
            finally:
                self._threads.discard(threading.current_thread())

        thread = threading.Thread(target=run, name=_NAME, daemon=True)
        self._threads.add(thread)
        thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for the threads, whose callers are closed."""
        until_s = time.monotonic() + timeout_s
        for thread in list(self._threads):
            thread.join(max(until_s - time.monotonic(), 0.0))
        if hanging := sum(thread.is_alive() for thread in list(self._threads)):
            _log.warning("%d calls of fetch have not returned; their threads end when they do", hanging)


class Caller:
    """Calls one function in a thread of its own, one call at a time; `close` ends the thread after the call.

    A caller that gave up waiting gets the answer of that call next, so that a call that hangs occupies one thread.
    """

    def __init__(self, function: Callable[[], Any], calls: Calls) -> None:
        self._function = function
        self._calls = calls
        self._asked: SimpleQueue[Future[Any] | None] = SimpleQueue()
        self._pending: asyncio.Future[Any] | None = None
        self._is_started = False

    def close(self) -> None:
        """End the thread."""
        self._asked.put(None)

    async def call(self) -> Any:  # noqa: ANN401 - what the function returns
        """Return the function's result, or raise its exception."""
        if self._pending is None:
            future: Future[Any] = Future()
            self._pending = asyncio.wrap_future(future)
            self._pending.add_done_callback(_retrieve)
            self._asked.put(future)
            if not self._is_started:
                self._is_started = True
                self._calls.start(self._work)
        pending = self._pending
        try:
            return await asyncio.shield(pending)
        finally:
            if pending.done():
                self._pending = None

    def _work(self) -> None:
        while (future := self._asked.get()) is not None:
            try:
                future.set_result(self._function())
            except StopIteration:  # which no future of asyncio takes
                future.set_exception(RuntimeError("StopIteration"))
            except Exception as error:  # noqa: BLE001 - it is the caller's
                future.set_exception(error)
            except BaseException as error:  # noqa: BLE001 - such as SystemExit, which would end the loop
                future.set_exception(RuntimeError(type(error).__name__))


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Look at an exception that may have no other reader, so that it is not reported as lost."""
    if not future.cancelled():
        future.exception()
