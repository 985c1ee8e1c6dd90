"""Addresses to listen on: `host:port` or `unix:/path`."""

from __future__ import annotations

_UNIX = "unix:"


def check_address(address: str) -> None:
    """Refuse anything else with a ValueError.

    Example:
        >>> check_address("[::1]:8080"), check_address("unix:/run/gateway.sock")
        (None, None)
        >>> check_address("8080")
        Traceback (most recent call last):
        ValueError: '8080' is no address: host:port, such as 127.0.0.1:8080, or unix:/path
    """
    host, _, port = address.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    is_tcp = host and port.isdecimal() and int(port) <= 65_535 and (is_bracketed or ":" not in host)  # noqa: PLR2004 - the largest port
    if not is_tcp and not address.startswith(_UNIX):
        raise ValueError(f"{address!r} is no address: host:port, such as 127.0.0.1:8080, or unix:/path")


def is_local(address: str) -> bool:
    """Return whether only this machine reaches an address.

    Example:
        >>> is_local("localhost:80"), is_local("0.0.0.0:80")
        (True, False)
    """
    return address.startswith((_UNIX, "127.", "localhost:", "[::1]:"))
