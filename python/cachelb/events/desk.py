"""The relay's side towards gateways: it publishes what engines say, and passes on what gateways ask them."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import zmq

from cachelb.events.frames import END, split_replay
from cachelb.events.relayed import StreamSign, live_frames, named_stream, state_frames, stream_name
from cachelb.events.sockets import received

if TYPE_CHECKING:
    from collections.abc import Callable

    from cachelb.events.fleet import Fleet
    from cachelb.events.relayed import Where
    from cachelb.events.sockets import Hub

_AT_ONCE: Final = 256
_REQUEST_FRAMES: Final = 4
_SIGNS_S: Final = 2.0
"""Between two messages of how every stream is: one may have been lost."""

_PASSAGES: Final = 1024
_IDLE_S: Final = 60.0
"""After which an answer that does not go on is given up; whoever asked did so before."""


class Passage:
    """One question to an engine, and its answers on their way back.

    Args:
        asker: Who asked: the name that the answering socket has for it.
        socket: The connection to the engine.
        deadline_s: When it is given up.
    """

    def __init__(self, desk: Desk, asker: bytes, deadline_s: float) -> None:
        self._desk = desk
        self.asker = asker
        self.socket: zmq.Socket[bytes] | None = None
        self.deadline_s = deadline_s

    def on_readable(self) -> None:
        """Pass on what the engine answered."""
        if self.socket is not None:
            for frames in received(self.socket, _AT_ONCE):
                if not self._desk.answer(self, frames):
                    return


class Desk:
    """What the streams of all workers are handed to. Lives in the subscriber's thread, but for its counters.

    Args:
        bind: Where to publish; the port above answers.
        hwm: Messages kept for one stream of one gateway that does not read.
        workers: Names the workers, with their ranks.

    Attributes:
        address: Where it publishes.
        subscribers: Subscriptions there are now.
        published: Messages of engines that were published, whether anybody listened or not.
        replays: Requests that were passed on.
        refused: Requests that were not: of strangers, or too many at once.
        dropped: Answers that whoever asked did not take fast enough, and asks for again.
    """

    def __init__(self, bind: str, hwm: int, workers: Callable[[], list[tuple[str, int]]]) -> None:
        self.address = ""
        self.subscribers = self.published = self.replays = self.refused = self.dropped = 0
        self._bind, self._hwm, self._workers = bind, hwm, workers
        self._life = os.urandom(8)
        self._connections = 0
        self._names: dict[Where, bytes] = {}
        self._signs: dict[Where, StreamSign] = {}
        self._passages: dict[bytes, Passage] = {}
        self._now_s = self._signs_s = 0.0

    def open(self, hub: Hub, fleet: Fleet) -> None:
        """Begin to listen.

        Args:
            hub: The thread's sockets.
            fleet: The streams.

        Raises:
            OSError: The address cannot be used.
        """
        self._hub, self._fleet = hub, fleet
        self._news, self._answers, self.address = hub.servers(self, self._bind, self._hwm)

    def on_readable(self) -> None:
        """Hear who listens, and what is asked."""
        for (frame,) in (frames for frames in received(self._news, _AT_ONCE) if len(frames) == 1):
            self._on_subscription(frame)
        for frames in received(self._answers, _AT_ONCE):
            self._on_request(frames)

    def settle(self, now_s: float) -> None:
        """Give up what waits for too long, and say how every stream is now and then.

        Args:
            now_s: The time.
        """
        self._now_s = now_s
        for passage in [passage for passage in self._passages.values() if passage.deadline_s <= now_s]:
            self._end(passage)
        if now_s >= self._signs_s:
            self._signs_s = now_s + _SIGNS_S
            for where in list(self._signs):
                self._tell(where)
                if self._fleet.endpoint_of(where) is None:
                    del self._signs[where], self._names[where]

    # --- what engines say ---

    def _kv_workers(self) -> list[tuple[str, int]]:
        return self._workers()

    def _kv_connected(self, key: str, dp_rank: int | None, replayable: bool) -> None:  # noqa: FBT001 - the seam
        self._connections += 1
        self._signs[key, dp_rank] = StreamSign(self._life, self._connections, connected=True, replayable=replayable)
        self._tell((key, dp_rank))

    def _kv_live(self, key: str, dp_rank: int | None, seq: int | None, payload: bytes) -> tuple[int, None]:
        where = key, dp_rank
        self._news.send_multipart(live_frames(self._name(where), self._signs[where], seq, payload))
        self.published += 1
        return 0, None

    def _kv_replayed(self, key: str, dp_rank: int | None, seq: int, payload: bytes) -> int:
        raise NotImplementedError("a relay asks engines for nothing itself")

    def _kv_replay_ended(self, key: str, dp_rank: int | None, complete: bool) -> None:  # noqa: FBT001 - the seam
        raise NotImplementedError("a relay asks engines for nothing itself")

    def _kv_disconnected(self, key: str, dp_rank: int | None) -> None:
        where = key, dp_rank
        self._signs[where] = replace(self._signs[where], connected=False)
        self._tell(where)

    # --- what gateways ask ---

    def _on_subscription(self, frame: bytes) -> None:
        begins = frame[:1] == b"\1"
        self.subscribers += 1 if begins else -1
        where = named_stream(frame[1:])
        if begins and where is not None:
            self._tell(where)

    def _on_request(self, frames: list[bytes]) -> None:
        where = named_stream(frames[1]) if len(frames) == _REQUEST_FRAMES else None
        endpoint = None if where is None else self._fleet.endpoint_of(where)
        if endpoint is None or endpoint.replay is None or len(self._passages) >= _PASSAGES:
            self.refused += 1
            return
        asker, _, *request = frames
        known = self._passages.get(asker)
        if known is not None:
            self._end(known)
        passage = Passage(self, asker, self._now_s + _IDLE_S)
        try:
            passage.socket = self._hub.dealer(passage, endpoint.replay, self._hwm)
        except zmq.ZMQError:
            self.refused += 1
            return
        self._passages[asker] = passage
        self.replays += 1
        passage.socket.send_multipart(request)

    def answer(self, passage: Passage, frames: list[bytes]) -> bool:
        """Pass an answer on, as it is.

        Args:
            passage: Whose.
            frames: The answer.

        Returns:
            Whether there may be more of them.
        """
        passage.deadline_s = self._now_s + _IDLE_S
        try:
            self._answers.send_multipart([passage.asker, *frames], zmq.NOBLOCK)
        except zmq.Again:
            self.dropped += 1
        except zmq.ZMQError:  # whoever asked is gone
            self._end(passage)
            return False
        answer = split_replay(frames)
        if answer is not None and answer[0] == END:
            self._end(passage)
            return False
        return True

    # --- the rest ---

    def _tell(self, where: Where) -> None:
        """Say how a stream is."""
        sign = self._signs.get(where) or StreamSign(self._life, 0)
        if self._fleet.endpoint_of(where) is None:
            sign = replace(sign, known=False, connected=False)
        self._news.send_multipart(state_frames(self._name(where), sign))

    def _name(self, where: Where) -> bytes:
        name = self._names.get(where)
        if name is None:
            name = stream_name(where)
            if where in self._signs:
                self._names[where] = name
        return name

    def _end(self, passage: Passage) -> None:
        with suppress(KeyError):
            del self._passages[passage.asker]
        socket, passage.socket = passage.socket, None
        if socket is not None:
            self._hub.close(socket)
