"""Statistics of a relay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cachelb.events import StreamStats


@dataclass(frozen=True, slots=True)
class RelayStats:
    """Statistics of a relay. Counters are those since the start.

    Attributes:
        streams: Per key and rank of the workers followed now; the rank is None for a worker without ranks.
        subscribers: Current subscriptions of gateways to streams.
        published: Messages of engines that were published.
        replays: Requests of gateways that were forwarded to engines.
        refused: Refused requests: for workers without a replay socket, too many at once, or of strangers.
        dropped: Messages that a gateway did not take fast enough; it requests them again.

    Example:
        >>> from cachelb_gateway.relay import Relay
        >>> Relay("tcp://127.0.0.1:*").stats().subscribers
        0
    """

    streams: Mapping[tuple[str, int | None], StreamStats]
    subscribers: int = 0
    published: int = 0
    replays: int = 0
    refused: int = 0
    dropped: int = 0
