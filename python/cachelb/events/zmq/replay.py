"""Catch-up over the replay socket of an engine."""

from __future__ import annotations

from dataclasses import KW_ONLY, InitVar, dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from cachelb.events.zmq.frames import END, replay_request, split_replay
from cachelb.events.zmq.sockets import received

if TYPE_CHECKING:
    from collections.abc import Callable

    import zmq

MOST_REPLAYED_BYTES: Final = 1 << 30
"""Limit of one catch-up; the buffer of an engine has ten thousand batches of some kilobytes."""

_LARGE_ANSWER: Final = 500
_LOST_REST_S: Final = 0.5
_MESSAGES_PER_TURN: Final = 256


class Progress(Enum):
    """Progress of a replay."""

    RUNNING = auto()
    COMPLETE = auto()
    FAILED = auto()
    FLOODED = auto()


@dataclass(eq=False, repr=False)
class Replay:
    """One catch-up, of as many requests as it takes.

    An engine sends its whole buffer through a ROUTER socket, which drops messages beyond its peer's queue of 1000. So
    an answer with a hole is requested again from the hole on, and one large enough to have lost its end is followed by
    another request, after half a second if the end does not come.

    Each request has a socket of its own, so that late answers to an earlier one are never taken for its own. `through`
    begins each request behind a relay. The replay is given up after `timeout_s` without a further batch; `deadline_s`
    is when to call `check` next.
    """

    connect: Callable[[], zmq.Socket[bytes]]
    close: Callable[[zmq.Socket[bytes]], None]
    start: int
    _: KW_ONLY
    timeout_s: float
    now_s: InitVar[float]
    through: tuple[bytes, ...] = ()

    def __post_init__(self, now_s: float) -> None:
        """Send the first request."""
        self.malformed = self._answered = self._bytes = 0
        self._next = self.start
        self._socket: zmq.Socket[bytes] | None = None
        self._ask(now_s)

    def receive(self, deliver: Callable[[int, bytes], None], now_s: float) -> Progress:
        """Read the answers that have come, up to a limit; deliver number and payload of each batch, in order."""
        if self._socket is None:
            return Progress.FAILED
        for frames in received(self._socket, _MESSAGES_PER_TURN):
            self._bytes += sum(map(len, frames))
            if self._bytes > MOST_REPLAYED_BYTES:
                return Progress.FLOODED
            answer = split_replay(frames)
            if answer is None:
                self.malformed += 1
                continue
            seq, payload = answer
            if seq == END:
                if self._answered < _LARGE_ANSWER:
                    return Progress.COMPLETE
                self._ask(now_s)
                return Progress.RUNNING
            if seq > self._next and self._answered:
                self._ask(now_s)
                return Progress.RUNNING
            if seq >= self._next:
                self._answered += 1
                self._next = seq + 1
                may_be_cut = self._answered >= _LARGE_ANSWER
                self.deadline_s = now_s + (min(_LOST_REST_S, self.timeout_s) if may_be_cut else self.timeout_s)
                deliver(seq, payload)
        return Progress.RUNNING

    def check(self, now_s: float) -> Progress:
        """Handle timeouts."""
        if now_s < self.deadline_s:
            return Progress.RUNNING
        if not self._answered:
            return Progress.FAILED
        self._ask(now_s)  # the end of the answer may have been dropped
        return Progress.RUNNING

    def end(self) -> None:
        """Close the socket. Idempotent."""
        socket, self._socket = self._socket, None
        if socket is not None:
            self.close(socket)

    def _ask(self, now_s: float) -> None:
        """Send a request over a new socket."""
        self.end()
        self._socket = self.connect()
        self._socket.send_multipart([*self.through, *replay_request(self._next)])
        self._answered = 0
        self.deadline_s = now_s + self.timeout_s
