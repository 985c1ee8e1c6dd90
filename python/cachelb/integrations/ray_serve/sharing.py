"""A router's end of the shared state: a task in its event loop that exchanges placements with the detached actor.

Routing never waits for it. Placements go into a bounded outbox; every interval, one call sends the outbox to the
actor and fetches the others' placements. If the actor cannot be reached, routing goes on with the local state.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cachelb.errors import NoWorkerAvailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cachelb.integrations.ray_serve.placements import Placement, Reply
    from cachelb.router import Router

    Exchange = Callable[[str, int, list[Placement], list[str]], Awaitable[Reply]]

_OUTBOX_BYTES = 16 << 20
_BATCH_BYTES = 4 << 20
_APPLIED_AT_ONCE = 64
_LONGEST_WAIT_S = 10.0

_log = logging.getLogger("cachelb.integrations.ray_serve")


@dataclass(slots=True)
class ShareCounters:
    """Counters of shared placements. They only rise."""

    sent: int = 0  # the actor took them
    dropped: int = 0  # not sent: the outbox was full, or the call failed
    received: int = 0  # of other routers
    strangers: int = 0  # of other routers, at replicas unknown here
    failures: int = 0  # failed calls, of which one is logged in a row


class Sharing:
    """The outbox of one router, and the task that empties it."""

    def __init__(
        self,
        router: Router[str],
        connect: Callable[[], Exchange],
        *,
        interval_s: float = 0.5,
        outbox_bytes: int = _OUTBOX_BYTES,
    ) -> None:
        """Prepare; `start` begins.

        `connect` finds or starts the actor and returns how to call it. It blocks, so it runs in a thread, once, and
        again when the actor is lost. `outbox_bytes` may wait to be sent.
        """
        self.counters = ShareCounters()
        self.origin = secrets.token_hex(8)
        self._router = router
        self._connect = connect
        self._interval_s = interval_s
        self._outbox: deque[Placement] = deque()
        self._outbox_bytes = 0
        self._max_bytes = outbox_bytes
        self._gone: list[str] = []
        self._epoch = ""
        self._cursor = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, in the running event loop; idempotent."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(_run(weakref.ref(self), self._interval_s))

    def stop(self) -> None:
        """End; idempotent."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def publish(self, placement: Placement) -> None:
        """Send a placement with the next call, unless too much waits already."""
        if self._outbox_bytes + placement.size > self._max_bytes:
            self.counters.dropped += 1
            return
        self._outbox.append(placement)
        self._outbox_bytes += placement.size

    def gone(self, worker: str) -> None:
        """Report with the next call that a replica was removed."""
        self._gone.append(worker)

    async def trade(self, exchange: Exchange) -> bool:
        """Make one call and apply the answer; return whether there is more to fetch now."""
        batch, size = [], 0
        while self._outbox and size < _BATCH_BYTES:
            placement = self._outbox.popleft()
            self._outbox_bytes -= placement.size
            size += placement.size
            batch.append(placement)
        gone, self._gone = self._gone, []
        try:
            reply = await exchange(self.origin, self._cursor, batch, gone)
        except BaseException:
            self.counters.dropped += len(batch)
            self._gone = gone + self._gone
            raise
        self.counters.sent += len(batch)
        if reply.epoch != self._epoch:
            self._epoch, known = reply.epoch, self._epoch
            if known:
                # The actor restarted, and counts from 1 again.
                self._cursor = 0
                return True
        self._cursor = reply.cursor
        await self._take_in(reply.placements)
        return reply.more or bool(self._outbox)

    async def connect(self) -> Exchange:
        """Find or start the actor without blocking the event loop; return how to call it."""
        return await asyncio.to_thread(self._connect)

    def failed(self, error: Exception) -> None:
        """Count a failure, and log the first in a row."""
        self.counters.failures += 1
        _log.warning("placements cannot be shared with other routers for now: %s", type(error).__name__)

    async def _take_in(self, placements: list[Placement]) -> None:
        known = set(self._router.keys())
        for at, placement in enumerate(placements):
            if at % _APPLIED_AT_ONCE == _APPLIED_AT_ONCE - 1:
                await asyncio.sleep(0)  # requests that came meanwhile go first
                known = set(self._router.keys())
            if placement.worker not in known:
                self.counters.strangers += 1
                continue
            try:
                decision = self._router.select_worker(**placement.arguments(), among=(placement.worker,), by_load=True)
            except NoWorkerAvailable:
                self.counters.strangers += 1
                continue
            decision.on_complete()
            self.counters.received += 1


async def _run(sharing_of: weakref.ref[Sharing], interval_s: float) -> None:
    """Exchange placements until the router is dropped. Holds it only during a call."""
    exchange: Any = None
    wait_s = 0.0
    while True:
        await asyncio.sleep(wait_s)
        sharing = sharing_of()
        if sharing is None:
            return
        try:
            if exchange is None:
                exchange = await sharing.connect()
            wait_s = 0.0 if await sharing.trade(exchange) else interval_s
        except Exception as error:  # noqa: BLE001 - counted and logged; routing must not stop with the sharing
            if wait_s <= interval_s:
                sharing.failed(error)
            else:
                sharing.counters.failures += 1
            exchange = None
            wait_s = min(max(2 * wait_s, 2 * interval_s), _LONGEST_WAIT_S)
        del sharing
