"""The interface of a router to the event transport."""

from __future__ import annotations

from typing import Protocol


class EventSink(Protocol):
    r"""The receiver of event streams: a stream is a worker and a rank, which is None for a worker without ranks.

    It checks the sequence of numbers, and returns which part of a stream is missing. A method raises
    `UnknownWorkerError` if the worker is not registered (any more).

    Example:
        >>> from cachelb import Router
        >>> from cachelb.events import EventSink
        >>> sink: EventSink = Router(["gpu0"]).event_sink
        >>> sink.connected("gpu0", None, False)
        >>> sink.live("gpu0", None, 0, b"\x92\x01\x91\x91\xb0AllBlocksCleared")
        (1, None)
    """

    def address_of(self, name: str) -> str:
        """Return the URL of a worker by its key, with the credentials that the key lacks."""
        ...

    def ranks(self) -> list[tuple[str, int]]:
        """Return the keys of the registered workers, and the number of ranks of each."""
        ...

    def connected(self, key: str, dp_rank: int | None, replayable: bool) -> int | None:  # noqa: FBT001 - the seam
        """Begin or continue a stream; return the number to replay from, None for no replay."""
        ...

    def live(self, key: str, dp_rank: int | None, seq: int | None, payload: bytes) -> tuple[int, int | None]:
        """Apply a live message; return the events applied, and the number to replay from, None for no replay."""
        ...

    def replayed(self, key: str, dp_rank: int | None, seq: int, payload: bytes) -> int:
        """Apply one batch of a replay; return the events applied."""
        ...

    def replay_ended(self, key: str, dp_rank: int | None, complete: bool) -> int | None:  # noqa: FBT001 - the seam
        """Process the end of a requested replay, or its absence; return the number to replay from next."""
        ...

    def disconnected(self, key: str, dp_rank: int | None) -> None:
        """Process the interruption of a stream."""
        ...


class KvSink(Protocol):
    """An object with a receiver of event streams; `cachelb.Router` implements it.

    Example:
        >>> from cachelb import Router
        >>> from cachelb.events import KvSink, ZmqSource
        >>> source = ZmqSource()
        >>> router: KvSink = Router(["http://127.0.0.1:1"])
        >>> source.start(router)  # `router.attach(source)` does this, and stops it with the router
        >>> source.stop()
    """

    @property
    def event_sink(self) -> EventSink:
        """Receiver of the events."""
        ...
