"""The event stream of one worker, or of one rank of it, behind a relay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachelb.events.relayed import split_relayed, stream_name
from cachelb.events.stream import Stream

if TYPE_CHECKING:
    from cachelb.events.relayed import RelayEndpoint, StreamSign, Where
    from cachelb.events.sink import KvSink
    from cachelb.events.sockets import Hub
    from cachelb.events.stream import StreamSettings


class RelayedStream(Stream):
    """Connected is what the relay is, to the engine; and this to the relay."""

    def __init__(
        self,
        where: Where,
        endpoint: RelayEndpoint,
        settings: StreamSettings,
        *,
        hub: Hub,
        sink: KvSink,
        shown: str,
    ) -> None:
        super().__init__(where, endpoint, settings, hub=hub, sink=sink, shown=shown)
        self._name = stream_name(where)
        self._sign: StreamSign | None = None

    @property
    def place(self) -> object:
        """What no two streams may share: all workers are at one address."""
        return self.endpoint.address, self._name

    def _wanted(self) -> bytes:
        return self._name

    def _replayable(self) -> bool:
        return self._sign is not None and self._sign.replayable

    def _through(self) -> tuple[bytes, ...]:
        return (self._name,)

    def _on_reached(self) -> None:
        """The relay says how the stream is as soon as it knows that somebody listens."""
        self._unreachable = False

    def _on_disconnected(self) -> None:
        self._sign = None
        super()._on_disconnected()

    def _on_frames(self, frames: list[bytes]) -> None:
        message = split_relayed(frames)
        if message is None:
            self._messages += 1
            self._fail_frames()
            return
        sign, live = message
        self._on_sign(sign)
        if live is not None and self._connected:
            self._messages += 1
            self._on_live(*live)

    def _on_sign(self, sign: StreamSign) -> None:
        if sign == self._sign:
            return
        if self._connected:
            self._on_disconnected()
        if sign.connected:
            self._sign = sign
            self._on_connected()
        else:
            self._on_unreachable("not connected at the relay" if sign.known else "not known at the relay")
