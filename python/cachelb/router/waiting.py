"""Waiting for a worker, in order of priority, then of arrival."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from cachelb.arguments import seconds
from cachelb.errors import NoWorkerAvailable

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from cachelb._core import Decision
    from cachelb.router.router import Router

_UNMOVED = frozenset(
    {
        "not ready",
        "draining",
        "unhealthy",
        "excluded",
        "not in `among`",
        "not serving the model",
        "not in the role",
    }
)
"""States that keep a worker out at any load."""


class Waiting:
    """Requests of any number of event loops that wait for a worker.

    They select and book one after another, so a worker that returns is not stampeded. The order holds among the
    requests of one event loop: no request waits for a stalled loop.

    A request that found saturated workers also wakes when its retry time comes: reports go stale and queues shrink
    without a notification.

    There is no lock: `wake` may run in a finalizer, at any point of any thread.
    """

    def __init__(self) -> None:
        """Begin without a request."""
        self._waiters: dict[tuple[int, int], _Waiter] = {}
        self._numbers = count()

    async def select(self, router: Router[Any], timeout_s: float, request: Mapping[str, Any]) -> Decision[Any]:
        """Wait until a worker can be picked, and select it."""
        timeout_s = seconds("timeout_s", timeout_s, least=0.0)
        if timeout_s == 0 or not self._waiters:
            try:
                return router.select_worker(**request)
            except NoWorkerAvailable:
                if timeout_s == 0:
                    raise
        import asyncio

        waiter = _Waiter()
        order = (-request.get("priority", 0), next(self._numbers))
        self._waiters[order] = waiter
        # Registered now, it tries once more, but not before requests that were woken earlier.
        waiter.call()
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                while True:
                    await waiter.turn()
                    try:
                        return router.select_worker(**request)
                    except NoWorkerAvailable as error:
                        self._heed(router, waiter, error)
                        if waiter.heeds_releases:
                            waiter.call_later(error.retry_after_s, self)
        except TimeoutError:
            if not limit.expired():
                raise
            return router.select_worker(**request)
        finally:
            waiter.stop()
            del self._waiters[order]
            self._heed(router, waiter, None)

    def wake(self, *, released: bool = False) -> None:
        """Wake the waiting callers in their order. Callable from any thread.

        `released` is the end of a request, which helps only callers that found saturated workers.
        """
        for _, waiter in sorted(self._waiters.items()):
            if waiter.heeds_releases or not released:
                waiter.call()

    def __len__(self) -> int:
        return len(self._waiters)

    def _heed(self, router: Router[Any], waiter: _Waiter, error: NoWorkerAvailable | None) -> None:
        """Record whether a release may help, so that no request is woken in vain."""
        heeds = error is not None and any(why not in _UNMOVED for why in error.reasons.values())
        # In the child of a fork, the parent's waiters are not the router's.
        if heeds != waiter.heeds_releases and router._waiting is self:
            waiter.heeds_releases = heeds
            router._fleet.add_waiters(1 if heeds else -1)
            if heeds:
                # A release may have come before it was counted.
                waiter.call()


class _Waiter:
    """One waiting request, and the event that wakes it."""

    def __init__(self) -> None:
        import asyncio

        self.heeds_releases = False
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._called = False
        self._timer: asyncio.TimerHandle | None = None

    async def turn(self) -> None:
        await self._event.wait()
        self._event.clear()
        self._called = False
        self.stop()

    def call_later(self, delay_s: float, waiting: Waiting) -> None:
        """Wake all requests after a delay, so that the order holds, unless this one is woken before."""
        self._timer = self._loop.call_later(delay_s, partial(waiting.wake, released=True))

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def call(self) -> None:
        if self._called:
            return
        self._called = True
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:
            # Its loop was closed meanwhile: it no longer waits.
            return
