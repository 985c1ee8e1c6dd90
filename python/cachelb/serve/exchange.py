"""One request of a client while it is served."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cachelb.serve.asgi import Receive

_UNWATCHED_S: Final = 0.02


class Exchange:
    """Knows who may end a request early, and who did: the client, the end of the process, or the idle timeout."""

    __slots__ = (
        "_is_over",
        "_leaving",
        "_task",
        "_timer",
        "deadline_s",
        "has_body",
        "held",
        "left",
        "started",
        "timed_out",
    )

    def __init__(self, deadline_s: float) -> None:
        """Begin in the current task, with a body to read."""
        self._task = asyncio.current_task()
        self._leaving: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False
        self.deadline_s = deadline_s  # it is ended then, unless a byte passes before
        self.has_body = False  # complete
        self.started = False  # the client has a part of the answer
        self.held = 0  # bytes of the body
        self.left = False  # the client
        self.timed_out = False  # no byte passed for too long

    def watch(self, receive: Receive) -> None:
        """Cancel the task when the client leaves; the body has been read, so the next message is that.

        A task that waits for it costs as much as picking a worker: short requests end before it begins.
        """
        self.has_body = True
        self._timer = asyncio.get_running_loop().call_later(_UNWATCHED_S, self._watch, receive)

    def stop(self, *, timed_out: bool = False) -> None:
        """Cancel the task, if it still serves."""
        if not self._is_over and self._task is not None:
            self.timed_out = self.timed_out or timed_out
            self._task.cancel()

    def finish(self) -> None:
        """Begin the end: nothing cancels the task any more."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._leaving is not None and not self._leaving.done():
            self._leaving.cancel()

    def _watch(self, receive: Receive) -> None:
        if not self._is_over:
            self._leaving = asyncio.get_running_loop().create_task(receive())  # type: ignore[arg-type]  # a coroutine
            self._leaving.add_done_callback(self._leave)

    def _leave(self, leaving: asyncio.Task[object]) -> None:
        if not self._is_over and not leaving.cancelled():
            self.left = True
            self.stop()
