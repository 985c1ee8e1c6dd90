"""The frames of live messages and of replay answers, in every form that engines send."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

END: Final = -1
"""Sequence number of the message that ends a replay; on the wire eight bytes of 0xff."""

_SEQ: Final = struct.Struct(">q")
_LIVE_NUMBERED: Final = 3
_LIVE_PLAIN: Final = 2
_REPLAY_LEAST: Final = 2


def split_live(frames: Sequence[bytes]) -> tuple[int | None, bytes] | None:
    r"""Take a live message apart: topic, sequence number, payload, of which some senders leave out the number.

    Args:
        frames: The frames as received.

    Returns:
        Sequence number and payload, or None if this is no such message.

    Example:
        >>> from cachelb.events.frames import split_live
        >>> split_live([b"topic", b"\0\0\0\0\0\0\0\7", b"payload"]), split_live([b"topic", b"payload"])
        ((7, b'payload'), (None, b'payload'))
    """
    if len(frames) == _LIVE_PLAIN:
        return None, frames[1]
    if len(frames) != _LIVE_NUMBERED:
        return None
    seq = _number(frames[1])
    return None if seq is None or seq < 0 else (seq, frames[2])


def split_replay(frames: Sequence[bytes]) -> tuple[int, bytes] | None:
    r"""Take a replay answer apart; newer senders put the topic before the number, so it is read from the end.

    Args:
        frames: The frames as a DEALER socket receives them.

    Returns:
        Sequence number, or `END`, and payload; None if this is no such answer.

    Example:
        >>> from cachelb.events.frames import split_replay
        >>> split_replay([b"", b"topic", b"\xff" * 8, b""])
        (-1, b'')
    """
    if len(frames) < _REPLAY_LEAST:
        return None
    seq = _number(frames[-2])
    return None if seq is None or seq < END else (seq, frames[-1])


def replay_request(start: int) -> list[bytes]:
    """Return the frames that ask for all batches from a sequence number on.

    Args:
        start: The first one wanted.

    Returns:
        The frames for a DEALER socket.
    """
    return [b"", _SEQ.pack(start)]


def _number(frame: bytes) -> int | None:
    number: int | None = _SEQ.unpack(frame)[0] if len(frame) == _SEQ.size else None
    return number
