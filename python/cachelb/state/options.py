"""Options that all transports have, checked."""

from __future__ import annotations

import math
from urllib.parse import urlsplit

from cachelb.state.exchange import ExchangeSettings

_PORTS = 65_535  # the port above it is used too


def text(name: str, value: object) -> str:
    """Refuse anything but text that is not empty.

    Args:
        name: What it is called.
        value: What was given.

    Returns:
        The text.

    Raises:
        TypeError: It is something else.
        ValueError: It is empty.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} must be text, got {type(value).__name__}")
    if not value:
        raise ValueError(f"{name} must not be empty")
    return value


def peer_address(value: object) -> str:
    """Refuse anything but the address of a peer.

    Args:
        value: What was given.

    Returns:
        The address.

    Raises:
        TypeError: It is no text.
        ValueError: It is no address of a host and a port.
    """
    address = text("a peer", value)
    try:
        parts = urlsplit(address)
        is_one = parts.scheme == "tcp" and parts.hostname is not None and parts.port is not None and parts.port < _PORTS
    except ValueError:
        is_one = False
    if not is_one:
        raise ValueError(f"a peer must be an address like tcp://10.0.0.2:7700, got {address!r}")
    return address


def number(name: str, value: object, *, above: float = 0.0, least: float | None = None) -> float:
    """Refuse anything but a finite number in a range.

    Args:
        name: What it is called.
        value: What was given.
        above: What it must be above.
        least: What it must be at least, instead of that.

    Returns:
        The number.

    Raises:
        TypeError: It is something else.
        ValueError: It is out of range.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    if not math.isfinite(value) or (value < least if least is not None else value <= above):
        bound = f"{least:g} or more" if least is not None else f"above {above:g}"
        raise ValueError(f"{name} must be {bound}, got {value}")
    return float(value)


def exchange_settings(
    *,
    interval_s: object,
    peer_timeout_s: object,
    warm_start_s: object,
    ttl_s: object,
    max_mb: object,
    share_fleet: object = False,
) -> ExchangeSettings:
    """Check the options of a transport.

    Args:
        interval_s: Seconds between two messages.
        peer_timeout_s: Seconds after which a silent router is gone.
        warm_start_s: Seconds to wait for a snapshot at the start.
        ttl_s: Seconds that placements of others are believed.
        max_mb: Megabytes of news that may wait.
        share_fleet: Whether changes of the fleet are told and followed.

    Returns:
        The settings.

    Raises:
        TypeError: One is of another type.
        ValueError: One is out of range.
    """
    if not isinstance(share_fleet, bool):
        raise TypeError(f"share_fleet must be True or False, got {type(share_fleet).__name__}")
    found = ExchangeSettings(
        interval_s=number("interval_s", interval_s),
        peer_timeout_s=number("peer_timeout_s", peer_timeout_s),
        warm_start_s=number("warm_start_s", warm_start_s, least=0.0),
        ttl_s=number("ttl_s", ttl_s),
        max_bytes=int(number("max_mb", max_mb) * (1 << 20)),
        share_fleet=share_fleet,
    )
    if found.peer_timeout_s < 1.0:
        raise ValueError(f"peer_timeout_s must be 1 or more, for heartbeats come every 0.25 s, got {peer_timeout_s}")
    return found
