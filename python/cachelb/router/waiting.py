"""Waiting for a worker: who asked first, or with the highest priority, is served first."""

from __future__ import annotations

import asyncio
import heapq
import threading
from itertools import count
from typing import TYPE_CHECKING, Any

from cachelb.errors import NoWorkerAvailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cachelb._core import Decision
    from cachelb.router.router import Router


class Waiting:
    """Requests that wait for a worker, of any number of event loops.

    Each of them selects and books on its own, one after another, so a worker that returns is not stampeded.
    """

    def __init__(self) -> None:
        """Begin with nobody."""
        self._lock = threading.Lock()
        self._waiters: list[tuple[int, int, _Waiter]] = []
        self._numbers = count()

    async def select(self, router: Router[Any], timeout_s: float, request: Mapping[str, Any]) -> Decision[Any]:
        """Select once somebody may be picked.

        Args:
            router: Selects.
            timeout_s: How long to wait at most, in seconds.
            request: The arguments of `select_worker`.

        Returns:
            The decision.

        Raises:
            NoWorkerAvailable: Nobody could be picked in time.
        """
        if not timeout_s >= 0:
            raise ValueError(f"timeout_s must be 0 or more, got {timeout_s}")
        try:
            return router.select_worker(**request)
        except NoWorkerAvailable:
            if timeout_s == 0:
                raise
        waiter = _Waiter(asyncio.get_running_loop())
        entry = (-int(request.get("priority", 0)), next(self._numbers), waiter)
        with self._lock:
            heapq.heappush(self._waiters, entry)
            router._set_waiters(len(self._waiters))
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    await waiter.turn()
                    try:
                        return router.select_worker(**request)
                    except NoWorkerAvailable:
                        continue
        except TimeoutError:
            return router.select_worker(**request)
        finally:
            with self._lock:
                self._waiters.remove(entry)
                heapq.heapify(self._waiters)
                router._set_waiters(len(self._waiters))

    def wake(self) -> None:
        """Let everybody who waits try again, in their order. Callable from any thread."""
        with self._lock:
            waiters = [waiter for _, _, waiter in sorted(self._waiters)]
        for waiter in waiters:
            waiter.call()

    def __len__(self) -> int:
        return len(self._waiters)


class _Waiter:
    """One request, and the event that says that it may try again."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._event = asyncio.Event()

    async def turn(self) -> None:
        await self._event.wait()
        self._event.clear()

    def call(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:
            # Its loop was closed under it: it no longer waits.
            return
