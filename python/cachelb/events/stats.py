"""How receiving events goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

StreamState: TypeAlias = Literal["unusable", "connecting", "live", "replaying", "disconnected"]
"""Where a subscription stands; `StreamStats.state` says what each means."""


@dataclass(frozen=True, slots=True)
class StreamStats:
    """How receiving the events of one worker, or of one rank of it, goes.

    Attributes:
        state: "unusable" without a socket, see `last_error`; "connecting" before the first connection; "live";
            "replaying", which is live too; "disconnected" while a connection is gone.
        address: The event socket of the engine, None if there is none.
        messages: Live messages received.
        malformed: Messages and answers that are none of an engine.
        refused: Messages that the router failed to take.
        connections: Times a connection was made.
        replays: Replays asked for.
        replays_failed: Replays that were not answered.
        last_error: What went wrong last ("no replay", "not reachable"), kept after recovery.

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
    """How receiving events goes.

    What the events did to the index is in `Router.stats`.

    Attributes:
        messages: Live messages received, of workers that are gone too.
        malformed: Messages that are none of an engine, likewise.
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
class RelayStats:
    """How relaying goes. Counters are those since the start.

    Attributes:
        streams: Per key and rank of the workers followed now; the rank is None for a worker without ranks.
        subscribers: Streams that gateways listen to now, each counted for each of them.
        published: Messages of engines that were published.
        replays: Requests of gateways that were passed on to engines.
        refused: Requests that were not, of workers without a replay socket or too many at once, and those of strangers.
        dropped: Messages that a gateway did not take fast enough; it asks for them again.

    Example:
        >>> from cachelb.events import Relay
        >>> Relay("tcp://127.0.0.1:*").stats().subscribers
        0
    """

    streams: Mapping[tuple[str, int | None], StreamStats]
    subscribers: int = 0
    published: int = 0
    replays: int = 0
    refused: int = 0
    dropped: int = 0
