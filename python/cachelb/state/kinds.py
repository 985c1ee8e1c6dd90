"""What messages of routers are for, read without taking them apart."""

from __future__ import annotations

from typing import Final

_KIND_AT: Final = 5  # in every message of a router
_CONTINUED: Final = 2
_HEARTBEAT: Final = 5


def is_heartbeat(message: bytes) -> bool:
    """Say whether a router only says that it is there, and how far it has told.

    Args:
        message: What `Exchange` publishes.

    Returns:
        Whether it is one.
    """
    return message[_KIND_AT] == _HEARTBEAT


def is_part(message: bytes) -> bool:
    """Say whether this goes on with a snapshot that began in a message before.

    Args:
        message: What `Exchange` heard, of which the router found the whole.

    Returns:
        Whether it is one.
    """
    return message[_KIND_AT] == _CONTINUED
