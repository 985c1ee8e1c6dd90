"""Waiting for a worker: who asked first, or with the highest priority, is served first."""

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
"""What keeps a worker out however little it has to do."""


class Waiting:
    """Requests that wait for a worker, of any number of event loops.

    Each of them selects and books on its own, one after another, so a worker that returns is not stampeded. The order
    holds among the requests of one event loop: no request waits for a loop that stands still.

    Whoever found workers too busy is also called when it is time to try again: a report grows old and a queue gets
    shorter without anybody telling.

    There is no lock: `wake` may run in a finalizer, and so in the middle of anything.
    """

    def __init__(self) -> None:
        """Begin with no request."""
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
        # It tries once more now that it is heard of, but not before those that were called earlier.
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
        """Note whether a release may help, so that no request is woken for nothing."""
        heeds = error is not None and any(why not in _UNMOVED for why in error.reasons.values())
        # In the child of a fork, the parent's waiters are not the router's.
        if heeds != waiter.heeds_releases and router._waiting is self:
            waiter.heeds_releases = heeds
            router._add_waiters(1 if heeds else -1)
            if heeds:
                # A release may have come before it was counted.
                waiter.call()


class _Waiter:
    """One request, and the event that says that it may try again."""

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
        """Call everybody after a delay, so that the order holds, unless this one is called before."""
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
            # Its loop was closed under it: it no longer waits.
            return
