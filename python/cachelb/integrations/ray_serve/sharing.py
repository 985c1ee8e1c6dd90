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
from typing import TYPE_CHECKING

from cachelb.errors import NoWorkerAvailable
from cachelb.integrations.ray_serve.messages import News
from cachelb.integrations.ray_serve.placements import decode

if TYPE_CHECKING:
    from collections.abc import Callable

    from cachelb.integrations.ray_serve.carrier import Trade
    from cachelb.router import Router

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
        connect: Callable[[], Trade],
        *,
        interval_s: float = 0.5,
        outbox_bytes: int = _OUTBOX_BYTES,
    ) -> None:
        """Prepare; `start` begins.

        `connect` finds or starts the actor and returns how to call it. Both block, so they run in threads; it is called
        again when the actor is lost. `outbox_bytes` may wait to be sent.
        """
        self.counters = ShareCounters()
        self.origin = secrets.token_hex(8)
        self._router = router
        self._connect = connect
        self._interval_s = interval_s
        self._outbox: deque[bytes] = deque()
        self._outbox_bytes = 0
        self._max_bytes = outbox_bytes
        self._life, self._cursor = "", 0
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

    def publish(self, placement: bytes) -> None:
        """Send a placement with the next call, unless too much waits already."""
        if self._outbox_bytes + len(placement) > self._max_bytes:
            self.counters.dropped += 1
            return
        self._outbox.append(placement)
        self._outbox_bytes += len(placement)

    async def trade(self, call: Trade) -> bool:
        """Make one call and apply the answer; return whether there is more to fetch now."""
        batch, size = [], 0
        while self._outbox and size < _BATCH_BYTES:
            batch.append(self._outbox.popleft())
            size += len(batch[-1])
        self._outbox_bytes -= size
        try:
            reply = await asyncio.to_thread(call, self.origin, self._life, self._cursor, News(batch))
        except BaseException:
            self.counters.dropped += len(batch)
            raise
        self.counters.sent += len(batch)
        self._life, self._cursor = reply.life, reply.cursor
        await self._take_in([message for _, message in reply.received])
        return reply.more or bool(self._outbox)

    async def connect(self) -> Trade:
        """Find or start the actor without blocking the event loop; return how to call it."""
        return await asyncio.to_thread(self._connect)

    def failed(self, error: Exception) -> None:
        """Count a failure, and log the first in a row."""
        self.counters.failures += 1
        _log.warning("placements cannot be shared with other routers for now: %s", type(error).__name__)

    async def _take_in(self, placements: list[bytes]) -> None:
        known = set(self._router.keys())
        for at, placement in enumerate(placements):
            if at % _APPLIED_AT_ONCE == _APPLIED_AT_ONCE - 1:
                await asyncio.sleep(0)  # requests that came meanwhile go first
                known = set(self._router.keys())
            arguments = decode(placement)
            if not known.issuperset(arguments["among"]):
                self.counters.strangers += 1
                continue
            try:
                decision = self._router.select_worker(**arguments, by_load=True)
            except NoWorkerAvailable:
                self.counters.strangers += 1
                continue
            decision.on_complete()
            self.counters.received += 1


async def _run(sharing_of: weakref.ref[Sharing], interval_s: float) -> None:
    """Exchange placements until the router is dropped. Holds it only during a call."""
    trade: Trade | None = None
    wait_s = 0.0
    while True:
        await asyncio.sleep(wait_s)
        sharing = sharing_of()
        if sharing is None:
            return
        try:
            if trade is None:
                trade = await sharing.connect()
            wait_s = 0.0 if await sharing.trade(trade) else interval_s
        except Exception as error:  # noqa: BLE001 - counted and logged; routing must not stop with the sharing
            if wait_s <= interval_s:
                sharing.failed(error)
            else:
                sharing.counters.failures += 1
            trade = None
            wait_s = min(max(2 * wait_s, 2 * interval_s), _LONGEST_WAIT_S)
        del sharing
