"""Statistics of event sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

StreamState: TypeAlias = Literal["unusable", "connecting", "live", "replaying", "disconnected"]
"""State of a subscription; `StreamStats.state` describes each."""


@dataclass(frozen=True, slots=True)
class StreamStats:
    """Statistics of the event stream of one worker, or of one rank of it.

    Attributes:
        state: "unusable" without a socket, see `last_error`; "connecting" before the first connection; "live";
            "replaying", which is live too; "disconnected" while a connection is gone.
        address: The event socket of the engine, None if there is none.
        messages: Live messages received.
        malformed: Messages and answers that are not in an engine's format.
        refused: Messages that the router failed to apply.
        connections: Times a connection was made.
        replays: Replays requested.
        replays_failed: Replays that were not answered.
        last_error: The latest error ("no replay", "not reachable"), kept after recovery.

    Example:
        >>> from cachelb.events import StreamStats
        >>> StreamStats().state
        'connecting'
    """

    state: StreamState = "connecting"
    address: str | None = None
    messages: int = 0
    malformed: int = 0
    refused: int = 0
    connections: int = 0
    replays: int = 0
    replays_failed: int = 0
    last_error: str | None = None


@dataclass(frozen=True, slots=True)
class ZmqSourceStats:
    """Statistics of an event source.

    `Router.stats` has the effect of the events on the index.

    Attributes:
        messages: Live messages received, including those of removed workers.
        malformed: Messages that are not in an engine's format, likewise.
        streams: Per key and rank of the workers followed now; the rank is None for a worker without ranks.

    Example:
        >>> from cachelb.events import ZmqSource
        >>> stats = ZmqSource().stats()
        >>> stats.messages, [stream.state for stream in stats.streams.values()]
        (0, [])
    """

    messages: int
    malformed: int
    streams: Mapping[tuple[str, int | None], StreamStats]


@dataclass(frozen=True, slots=True)
class PollStats:
    """Statistics of polling one worker.

    Attributes:
        polls: Requests sent.
        failures: Requests without an answer of events.
        messages: Messages applied: the events of one answer without a hole in their numbers.
        malformed: Answers that are no JSON array of events.
        refused: Answers that the router failed to apply.
        foreign: Events of ranks that the worker does not have, see `dp_size`.
        last_error: The latest error ("TimeoutError", "HTTP 503"), kept after recovery.

    Example:
        >>> from cachelb.events import PollStats
        >>> print(PollStats().last_error)
        None
    """

    polls: int = 0
    failures: int = 0
    messages: int = 0
    malformed: int = 0
    refused: int = 0
    foreign: int = 0
    last_error: str | None = None


@dataclass(frozen=True, slots=True)
class PollSourceStats:
    """Statistics of a polling event source.

    `Router.stats` has the effect of the events on the index.

    Attributes:
        polls: Requests sent, including those to removed workers.
        failures: Requests without an answer of events, likewise.
        workers: Per key of the workers polled now.

    Example:
        >>> from cachelb.events import PollSource
        >>> stats = PollSource(lambda key: []).stats()
        >>> stats.polls, stats.failures, stats.workers
        (0, 0, {})
    """

    polls: int
    failures: int
    workers: Mapping[str, PollStats]
