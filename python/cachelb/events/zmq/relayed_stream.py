"""The event stream of one worker, or of one rank of it, behind a relay."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from functools import cached_property
from typing import Final

import zmq

from cachelb.events.zmq.relayed import StreamSign, split_relayed, stream_name
from cachelb.events.zmq.sockets import Keys
from cachelb.events.zmq.stream import Stream

_log = logging.getLogger("cachelb.events")

_ASK_AGAIN_S: Final = (0.5, 2.0)
"""Seconds between two requests for a stream: while it is disconnected, and then."""


class RelayedStream(Stream):
    """A stream behind a relay, connected if this is connected to the relay and the relay to the engine."""

    _sign: StreamSign | None = None
    _last: int | None = None
    _ask_s = 0.0

    @cached_property
    def _name(self) -> bytes:
        return stream_name(self.where)

    @property
    def place(self) -> object:
        """The key that no two streams may share: all workers are at one address."""
        return self.endpoint.address, self._name

    @property
    def deadline_s(self) -> float | None:
        """When to call `on_time` next."""
        found = super().deadline_s
        return self._ask_s if found is None else min(found, self._ask_s)

    def on_time(self) -> None:
        """Also request the stream again: the relay may not have had it, or the request was lost."""
        super().on_time()
        if time.monotonic() >= self._ask_s:
            self._ask()

    def _ask(self) -> None:
        self._ask_s = time.monotonic() + _ASK_AGAIN_S[self.is_connected]
        if self._socket is not None:
            with suppress(zmq.Again):  # there is no connection yet
                self._socket.send(self._name, zmq.NOBLOCK)

    def _wanted(self) -> None:
        return None

    def _keys(self) -> Keys | None:
        return self.settings.relay_keys

    def _replayable(self) -> bool:
        return self._sign is not None and self._sign.replayable

    def _through(self) -> tuple[bytes, ...]:
        return (self._name,)

    def _on_reached(self) -> None:
        """The relay answers a request with the state of the stream."""
        self._unreachable = False
        self._ask()

    def _on_disconnected(self) -> None:
        self._sign = None
        super()._on_disconnected()

    def _on_frames(self, frames: list[bytes]) -> None:
        message = split_relayed(frames)
        if message is None:
            self._counts["messages"] += 1
            self._fail_frames()
            return
        if message.sign != self._sign:
            self._on_sign(message.sign)
        elif message.live is None and message.last != self._last and self._replayable():
            if self._replay is not None:
                return  # may fill the gap; if not, the state comes again
            _log.debug("the relay dropped the last messages of %s for this subscriber", self.shown)
            self._catch_up()
        self._last = message.last
        if message.live is not None and self.is_connected:
            self._counts["messages"] += 1
            self._on_live(*message.live)

    def _on_sign(self, sign: StreamSign) -> None:
        if self.is_connected:
            self._on_disconnected()
        if sign.connected:
            self._sign = sign
            self._on_connected()
        else:
            self._on_unreachable("not connected at the relay" if sign.known else "not known at the relay")
