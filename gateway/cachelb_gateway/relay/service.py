"""The relay's side towards gateways: it publishes the engines' messages, and forwards replay requests."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import zmq

from cachelb.events.zmq.relayed import StreamSign, live_frames, named_stream, state_frames, stream_name
from cachelb.events.zmq.sockets import Listeners, received
from cachelb_gateway.relay.passages import Passages

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from cachelb.events.fleet import Fleet
    from cachelb.events.zmq.relayed import Where
    from cachelb.events.zmq.sockets import Hub, Keys

_AT_ONCE: Final = 256
_SUBSCRIBE_FRAMES: Final = 2
_REQUEST_FRAMES: Final = 4
_LISTENERS: Final = 1 << 16
_SIGNS_S: Final = 2.0
"""Seconds between two state messages of a stream, in case one was lost; sending also detects gateways that left."""


class Service:
    """The relay's server sockets: publishes every worker's stream at `bind` and answers at the port above.

    Lives in the subscriber's thread, except for its counters: `published` messages, with listeners or without, and
    `refused` requests of strangers or beyond the limit. `hwm` messages are kept for one stream of one gateway that does
    not read.
    """

    def __init__(
        self, bind: str, hwm: int, workers: Callable[[], list[tuple[str, int]]], keys: Keys | None = None
    ) -> None:
        self.address = ""
        self.published = self.refused = 0
        self._bind, self._hwm, self._workers, self._keys = bind, hwm, workers, keys
        self._life = os.urandom(8)
        self._connections = 0
        self._names: dict[Where, bytes] = {}
        self._signs: dict[Where, StreamSign] = {}
        self._last: dict[Where, int | None] = {}
        self._signs_s = 0.0

    def open(self, hub: Hub, fleet: Fleet) -> None:
        """Begin to listen."""
        self._hub, self._engines = hub, fleet
        self._news, self._answers, self.address = hub.servers(self, self._bind, self._hwm, self._keys)
        self._listeners = Listeners(self._news, _LISTENERS)
        self._passages = Passages(hub, self._answers)

    @property
    def subscribers(self) -> int:
        """Current subscriptions of gateways to streams."""
        return len(self._listeners)

    @property
    def dropped(self) -> int:
        """Messages that a gateway did not take fast enough, and requests again."""
        return self._listeners.dropped

    @property
    def replays(self) -> int:
        """Requests forwarded to engines."""
        return self._passages.asked

    def on_readable(self) -> None:
        """Read subscriptions and replay requests."""
        for frames in received(self._news, _AT_ONCE):
            self._on_subscribe(frames)
        for frames in received(self._answers, _AT_ONCE):
            self._on_request(frames)

    def settle(self, now_s: float) -> float | None:
        """Continue answers and publish every stream's state now and then; return when there is more to do."""
        if now_s >= self._signs_s:
            self._signs_s = now_s + _SIGNS_S
            for where in list(self._signs):
                self._announce(where)
                if self._engines.endpoint_of(where) is None:
                    self._listeners.forget(self._name(where))
                    del self._signs[where], self._names[where]
                    self._last.pop(where, None)
        return self._passages.settle(now_s)

    # --- from engines ---

    @property
    def event_sink(self) -> Self:
        """The service itself."""
        return self

    def address_of(self, name: str) -> str:
        """Return the address of a worker, which is its key."""
        return name

    def ranks(self) -> list[tuple[str, int]]:
        """Return the workers and their ranks."""
        return self._workers()

    def connected(self, key: str, dp_rank: int | None, replayable: bool) -> None:  # noqa: FBT001 - the seam
        """Begin or continue a stream."""
        self._connections += 1
        self._signs[key, dp_rank] = StreamSign(self._life, self._connections, connected=True, replayable=replayable)
        self._last[key, dp_rank] = None
        self._announce((key, dp_rank))

    def live(self, key: str, dp_rank: int | None, seq: int | None, payload: bytes) -> tuple[int, None]:
        """Process a live message."""
        where = key, dp_rank
        name = self._name(where)
        self._last[where] = seq
        self._listeners.send(name, live_frames(name, self._signs[where], seq, payload))
        self.published += 1
        return 0, None

    def replayed(self, key: str, dp_rank: int | None, seq: int, payload: bytes) -> int:
        """Process a batch of a replay."""
        raise NotImplementedError("a relay asks engines for nothing itself")

    def replay_ended(self, key: str, dp_rank: int | None, complete: bool) -> None:  # noqa: FBT001 - the seam
        """Process the end of a replay."""
        raise NotImplementedError("a relay asks engines for nothing itself")

    def disconnected(self, key: str, dp_rank: int | None) -> None:
        """Process the interruption of a stream."""
        where = key, dp_rank
        self._signs[where] = replace(self._signs[where], connected=False)
        self._announce(where)

    # --- from gateways ---

    def _on_subscribe(self, frames: list[bytes]) -> None:
        listener, name = frames if len(frames) == _SUBSCRIBE_FRAMES else (b"", b"")
        where = named_stream(name)
        if where is None:
            self.refused += 1
            return
        # A subscription to an unknown stream is not stored; the gateway repeats it.
        if self._engines.endpoint_of(where) is not None and not self._listeners.add(name, listener):
            self.refused += 1
            return
        with suppress(zmq.ZMQError):  # gone, or does not read
            self._news.send_multipart([listener, *self._state(where)], zmq.NOBLOCK)

    def _on_request(self, frames: list[bytes]) -> None:
        where = named_stream(frames[1]) if len(frames) == _REQUEST_FRAMES else None
        endpoint = None if where is None else self._engines.endpoint_of(where)
        if endpoint is None or endpoint.replay is None:
            self.refused += 1
            return
        asker, _, *request = frames
        self.refused += not self._passages.ask(asker, endpoint.replay, request)

    # --- the rest ---

    def _announce(self, where: Where) -> None:
        """Publish the state of a stream."""
        self._listeners.send(self._name(where), self._state(where))

    def _state(self, where: Where) -> list[bytes]:
        return state_frames(self._name(where), self._sign(where), self._last.get(where))

    def _sign(self, where: Where) -> StreamSign:
        sign = self._signs.get(where) or StreamSign(self._life, 0)
        return sign if self._engines.endpoint_of(where) is not None else replace(sign, known=False, connected=False)

    def _name(self, where: Where) -> bytes:
        name = self._names.get(where)
        if name is None:
            name = stream_name(where)
            if where in self._signs:
                self._names[where] = name
        return name
