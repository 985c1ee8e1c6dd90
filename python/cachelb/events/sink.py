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


class RouterEvents(EventSink, Protocol):
    """`Router.event_sink`: it receives streams, and messages that you received yourself."""

    def key_of(self, worker: object) -> str:
        """Return the key of a worker given as itself or as its key."""
        ...

    def apply_events(
        self,
        worker: object,
        payload: bytes | bytearray | memoryview,
        *,
        seq: int | None = None,
        dp_rank: int | None = None,
    ) -> int:
        r"""Apply a KV event message of a worker's engine that you received yourself.

        Messages of a worker, or of each rank of it, must come in order. Sequence numbers reveal duplicates, a restarted
        engine and lost messages; after a loss the worker's blocks are doubtful and the stream is "degraded"
        (`WorkerStats.kv_events`). An unreadable message counts as lost. The content of a message never raises: entries
        that cannot be applied are counted.

        Args:
            worker: The worker or its key.
            payload: The last frame of the message: a batch of events in msgpack.
            seq: Its number, None if the engine gives none.
            dp_rank: Rank whose endpoint it came from; a rank named in the message wins.

        Returns:
            How many events were applied.

        Raises:
            UnknownWorkerError: The worker is not registered.
            TypeError: An argument has the wrong type.
            ValueError: A number is out of range, or the worker has no such rank.

        Example:
            >>> from cachelb import Router
            >>> router = Router(["gpu0"], policy="kv-aware")
            >>> router.event_sink.apply_events("gpu0", b"\x92\x01\x91\x91\xb0AllBlocksCleared", seq=0)
            1
            >>> router.stats().workers[0].kv_events.state
            'live'
        """
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
