"""Kinds of router messages, read without decoding them."""

from __future__ import annotations

from typing import Final

_KIND_AT: Final = 5  # in every message of a router
_CONTINUED: Final = 2
_HEARTBEAT: Final = 5


def is_heartbeat(message: bytes) -> bool:
    """Return whether a message only reports liveness and how far its sender has published."""
    return message[_KIND_AT] == _HEARTBEAT


def is_part(message: bytes) -> bool:
    """Return whether a message continues a snapshot that began in an earlier message.

    Only for messages that the router found complete.
    """
    return message[_KIND_AT] == _CONTINUED
