"""Requests that a gate holds: the caller waits until it is its turn."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cachelb._core import HeldRequest
from cachelb.errors import Overloaded

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping
    from typing import Self

    from cachelb._core import AdmissionGate

_THREADS = 0
"""The caller of all requests that wait in threads: a thread answers when it is called."""


@dataclass(slots=True)
class Hold:
    """A request that a gate may hold, as long as it waits (None for any time), alone or as a pair.

    One that is held for workers waits too while none may be picked at all, and may still go when its time is over.
    Others are refused then, by their own deadline or by that of all.
    """

    gate: AdmissionGate[Any]
    request: Mapping[str, Any]
    wait_s: float | None
    is_own_deadline: bool = False
    is_pair: bool = False
    for_workers: bool = False

    def enter(self, call: Callable[[], object], caller: int) -> Any:  # noqa: ANN401 - what was asked for
        """Come to the gate: a decision, a pair of them, or a request that is held."""
        until_s = None if self.for_workers else self.wait_s
        how = (until_s, self.is_own_deadline, self.is_pair, self.for_workers)
        return self.gate.enter(call, caller, how, **self.request)

    async def wait(self) -> Any:  # noqa: ANN401 - what was asked for
        """Wait in the running event loop for the decision, or for the pair."""
        import asyncio

        loop = asyncio.get_running_loop()
        turn = _Turn(loop)
        held = self.enter(turn.call, id(loop))
        if not isinstance(held, HeldRequest):
            return held
        turn.event = asyncio.Event()
        with _Stay(held, loop.time, self) as stay:
            while True:
                await turn.wait(stay.until())
                found = stay.try_again()
                if found is not None:
                    return found

    def wait_sync(self) -> Any:  # noqa: ANN401 - what was asked for
        """Wait in the calling thread."""
        turn = _ThreadTurn()
        held = self.enter(turn.call, _THREADS)
        if not isinstance(held, HeldRequest):
            return held
        with _Stay(held, time.monotonic, self) as stay:
            while True:
                turn.wait(stay.until())
                found = stay.try_again()
                if found is not None:
                    return found


class _Stay:
    """A held request in the queue: when it is to look again, when its time is over, and that it leaves in the end."""

    __slots__ = ("_again_s", "_begin_s", "_end_s", "_gate", "_held", "_now")

    def __init__(self, held: HeldRequest[Any], now: Callable[[], float], hold: Hold) -> None:
        self._held, self._now, self._gate = held, now, hold.gate
        self._begin_s = now()
        self._end_s = None if hold.wait_s is None else self._begin_s + hold.wait_s
        self._again_s: float | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: object, _traceback: object) -> None:
        if isinstance(error, Overloaded):
            error.waited_s = self._now() - self._begin_s
        self._held.give_up()

    def until(self) -> float | None:
        """Return when to try again, called or not; None for never."""
        again_s = self._held.again_s
        self._again_s = None if again_s is None else self._now() + again_s
        return min((time_s for time_s in (self._end_s, self._again_s) if time_s is not None), default=None)

    def try_again(self) -> Any:  # noqa: ANN401 - what was asked for
        now_s = self._now()
        if self._again_s is not None and now_s >= self._again_s:
            self._gate.look_again()
        return self._held.try_again(self._end_s is not None and now_s >= self._end_s)


class _Turn:
    """Wakes a task of an event loop, from any thread. Most requests need no event: it is made for those that wait."""

    __slots__ = ("_loop", "event")

    event: asyncio.Event

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def call(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._set)
        except RuntimeError:
            # The loop was closed under the request, which leaves with its task.
            return

    def _set(self) -> None:
        self.event.set()

    async def wait(self, until_s: float | None) -> None:
        timer = None if until_s is None else self._loop.call_at(until_s, self._set)
        try:
            await self.event.wait()
        finally:
            if timer is not None:
                timer.cancel()
        self.event.clear()


class _ThreadTurn:
    """Wakes a thread."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        # Held until the call.
        self._lock = threading.Lock()
        self._lock.acquire()

    def call(self) -> None:
        # It may have been called before and not woken yet.
        with contextlib.suppress(RuntimeError):
            self._lock.release()

    def wait(self, until_s: float | None) -> None:
        # A thread that waits for ever cannot be interrupted on every platform.
        most_s = threading.TIMEOUT_MAX if until_s is None else max(0.0, until_s - time.monotonic())
        self._lock.acquire(timeout=min(most_s, threading.TIMEOUT_MAX))
