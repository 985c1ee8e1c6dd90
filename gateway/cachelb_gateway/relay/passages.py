"""Replay requests of gateways through a relay, with answers as fast as the gateway takes them."""

from __future__ import annotations

from typing import Final

import zmq

from cachelb.events.zmq.frames import END, split_replay
from cachelb.events.zmq.sockets import Hub, received

_AT_ONCE: Final = 256
_PASSAGES: Final = 1024
_IDLE_S: Final = 60.0
"""Seconds after which a stalled answer is given up; the client did so before."""

_PAUSES_S: Final = (0.005, 0.1)
"""Seconds until a gateway is tried again, first and at most: a ROUTER has no readiness per peer."""


class Passage:
    """One replay request to an engine, and its answers on their way back.

    `asker` is the answering socket's name for the gateway. An answer that the gateway did not take is in `kept` and
    retried after `pause_s`; the engine's socket is not read meanwhile.
    """

    def __init__(self, passages: Passages, hub: Hub, asker: bytes, address: str, deadline_s: float) -> None:
        self._passages = passages
        self.asker = asker
        self.socket = hub.dealer(self, address)
        self.deadline_s = deadline_s
        self.kept: list[bytes] | None = None
        self.pause_s = _PAUSES_S[0]
        self.again_s = 0.0

    def on_readable(self) -> None:
        """Pass the engine's answers on."""
        if self.kept is not None or self.socket.closed:
            return
        for frames in received(self.socket, _AT_ONCE):
            if not self._passages.answer(self, frames):
                return


class Passages:
    """All replay requests in progress. No answer is dropped: those a gateway does not take wait at the engine."""

    def __init__(self, hub: Hub, answers: zmq.Socket[bytes]) -> None:
        self.asked = 0
        self._hub = hub
        self._answers = answers
        self._open: dict[bytes, Passage] = {}
        self._now_s = 0.0

    def ask(self, asker: bytes, address: str, request: list[bytes]) -> bool:
        """Pass a request on, in place of the peer's previous one; False beyond the limit of concurrent requests."""
        if len(self._open) >= _PASSAGES:
            return False
        known = self._open.get(asker)
        if known is not None:
            self._end(known)
        try:
            passage = Passage(self, self._hub, asker, address, self._now_s + _IDLE_S)
        except zmq.ZMQError:
            return False
        self._open[asker] = passage
        self.asked += 1
        passage.socket.send_multipart(request)
        return True

    def answer(self, passage: Passage, frames: list[bytes]) -> bool:
        """Pass an answer on as it is, or keep it and stop reading until it is taken; True if the next may be read."""
        try:
            self._answers.send_multipart([passage.asker, *frames], zmq.NOBLOCK)
        except zmq.Again:
            passage.kept = frames
            passage.again_s = self._now_s + passage.pause_s
            self._hub.pause(passage.socket)
            return False
        except zmq.ZMQError:  # the client is gone
            self._end(passage)
            return False
        passage.deadline_s = self._now_s + _IDLE_S
        answer = split_replay(frames)
        if answer is not None and answer[0] == END:
            self._end(passage)
            return False
        return True

    def settle(self, now_s: float) -> float | None:
        """Time out what waits too long and retry kept answers; return when there is more to do, None for never."""
        self._now_s = now_s
        next_s: float | None = None
        for passage in list(self._open.values()):
            if passage.deadline_s <= now_s:
                self._end(passage)
                continue
            if passage.kept is not None and passage.again_s <= now_s:
                self._go_on(passage)
            if passage.kept is not None and (next_s is None or passage.again_s < next_s):
                next_s = passage.again_s
        return next_s

    def _go_on(self, passage: Passage) -> None:
        frames, passage.kept = passage.kept or [], None
        passage.pause_s = min(2 * passage.pause_s, _PAUSES_S[1])
        self._hub.resume(passage.socket)
        if self.answer(passage, frames):
            passage.pause_s = _PAUSES_S[0]

    def _end(self, passage: Passage) -> None:
        del self._open[passage.asker]
        passage.kept = None
        self._hub.close(passage.socket)
