"""Checks of the options that all transports have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from cachelb.common.arguments import number, require, seconds
from cachelb.events.endpoints import pair_address

_MOST_PEERS: Final = 256
"""Most peers; each takes two connections here, and two of this router's there."""

_MOST_MB: Final = 1 << 20
_LEAST_INTERVAL_S: Final = 0.001
_INTERVALS: Final = 3.0
"""Intervals that must fit into `peer_timeout_s`: heartbeats come no faster."""


def text(name: str, value: object) -> str:
    """Refuse anything but a nonempty string."""
    require(name, value, str, "text")
    if not value:
        raise ValueError(f"{name} must not be empty")
    return str(value)


def peer_addresses(value: object) -> set[str]:
    """Refuse anything but a few addresses of peers."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        given = f"the text {value!r}" if isinstance(value, str) else type(value).__name__
        raise TypeError(f"peers must be a sequence of addresses or a function that returns one, got {given}")
    # Bounded: a function may return an endless iterable.
    found = {pair_address("a peer", peer, "tcp://10.0.0.2:7700") for peer in islice(value, _MOST_PEERS + 1)}
    if len(found) > _MOST_PEERS:
        raise ValueError(f"peers must be {_MOST_PEERS} addresses at most; use RedisState for a larger fleet")
    return found


def megabytes(name: str, value: object) -> int:
    """Read a number of megabytes and return it in bytes."""
    return int(number(name, value, most=_MOST_MB) * (1 << 20))


@dataclass(kw_only=True, eq=False, repr=False)
class ExchangeSettings:
    """Options of the exchange between routers, which all transports have."""

    interval_s: float = 0.02  # between two messages of changes
    peer_timeout_s: float = 1.5  # until a silent router counts as gone
    warm_start_s: float = 0.0  # to wait at the start for a peer's snapshot
    ttl_s: float = 3600.0  # of remote placements
    max_mb: float = 16.0
    share_fleet: bool = False  # publish and follow changes of the fleet
    max_bytes: int = field(init=False)  # of entries that wait, and of messages kept of a peer until its snapshot comes

    def __post_init__(self) -> None:
        """Check the options."""
        require("share_fleet", self.share_fleet, bool, "True or False")
        interval_s, peer_timeout_s = self.interval_s, self.peer_timeout_s
        self.interval_s = seconds("interval_s", interval_s, least=_LEAST_INTERVAL_S)
        self.peer_timeout_s = seconds("peer_timeout_s", peer_timeout_s)
        self.warm_start_s = seconds("warm_start_s", self.warm_start_s, least=0.0)
        self.ttl_s = seconds("ttl_s", self.ttl_s)
        self.max_bytes = megabytes("max_mb", self.max_mb)
        if self.peer_timeout_s < 1.0:
            raise ValueError(
                f"peer_timeout_s must be 1 or more, for heartbeats come every 0.25 s, got {peer_timeout_s}"
            )
        if self.interval_s * _INTERVALS > self.peer_timeout_s:
            raise ValueError(
                f"interval_s must be {self.peer_timeout_s / _INTERVALS:g} at most, a third of peer_timeout_s, or others"
                f" take this router for dead between two messages; got {interval_s}"
            )
