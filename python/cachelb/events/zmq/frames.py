"""The frames of live messages and of replay answers, in every form that engines send."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

END: Final = -1
"""Sequence number of the message that ends a replay; on the wire eight bytes of 0xff."""

_SEQ: Final = struct.Struct(">q")
_LIVE_NUMBERED: Final = 3
_LIVE_PLAIN: Final = 2
_REPLAY_LEAST: Final = 2


def split_live(frames: Sequence[bytes]) -> tuple[int | None, bytes] | None:
    r"""Split a live message into sequence number, which some senders leave out, and payload; None for anything else.

    Example:
        >>> from cachelb.events.zmq.frames import split_live
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
    r"""Split a replay answer into sequence number, or `END`, and payload; None for anything else.

    Newer senders put the topic before the number, so it is read from the end.

    Example:
        >>> from cachelb.events.zmq.frames import split_replay
        >>> split_replay([b"", b"topic", b"\xff" * 8, b""])
        (-1, b'')
    """
    if len(frames) < _REPLAY_LEAST:
        return None
    seq = _number(frames[-2])
    return None if seq is None or seq < END else (seq, frames[-1])


def replay_request(start: int) -> list[bytes]:
    """Return the frames that request all batches from a sequence number on."""
    return [b"", _SEQ.pack(start)]


def _number(frame: bytes) -> int | None:
    number: int | None = _SEQ.unpack(frame)[0] if len(frame) == _SEQ.size else None
    return number
