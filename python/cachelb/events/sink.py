"""What the transport needs of a router."""

from __future__ import annotations

from typing import Protocol


class KvSink(Protocol):
    """What event streams are handed to; `cachelb.Router` has it.

    A stream is a worker and a rank; the rank is None for a worker without ranks. The sink keeps the order of the
    numbers, and says which part of a stream it misses. A method raises `UnknownWorkerError` if the worker is
    not registered (any more).

    Example:
        >>> from cachelb import Router
        >>> from cachelb.events import KvSink, ZmqSource
        >>> source = ZmqSource()
        >>> router: KvSink = Router(["http://127.0.0.1:1"])
        >>> source.start(router)  # `router.attach(source)` does this, and stops it with the router
        >>> source.stop()
    """

    def _kv_workers(self) -> list[tuple[str, int]]:
        """Return the keys of the workers that are registered now, and how many ranks each has."""
        ...

    def _kv_connected(self, key: str, dp_rank: int | None, replayable: bool) -> int | None:  # noqa: FBT001 - the seam
        """Begin or go on with a stream; return the number to replay from, None for no replay."""
        ...

    def _kv_live(self, key: str, dp_rank: int | None, seq: int | None, payload: bytes) -> tuple[int, int | None]:
        """Take a live message; return the events applied, and the number to replay from, None for no replay."""
        ...

    def _kv_replayed(self, key: str, dp_rank: int | None, seq: int, payload: bytes) -> int:
        """Take one batch of a replay; return the events applied."""
        ...

    def _kv_replay_ended(self, key: str, dp_rank: int | None, complete: bool) -> int | None:  # noqa: FBT001 - the seam
        """Hear that the replay asked for has ended, or that there is none; return the number of the next one."""
        ...

    def _kv_disconnected(self, key: str, dp_rank: int | None) -> None:
        """Hear that the stream is interrupted."""
        ...
