"""What a relay and those behind it say to each other.

The relay publishes the streams of all workers at one address; what a message begins with names the stream, and is what
subscribers ask for. Every message says how the stream is: whether the relay is connected to the engine, and a number
that changes with every connection. A client that hears of another one may have missed something meanwhile.
The same is sent every two seconds, with the number of the last live message, which may have been dropped.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from cachelb.events.frames import split_live

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    Where: TypeAlias = tuple[str, int | None]

_KEY: Final = struct.Struct(">I")
_RANK: Final = struct.Struct(">i")
_SIGN: Final = struct.Struct(">8sQ???")
_PORTS: Final = range(1, 65_535)
_NO_RANK: Final = -1
_STATE_FRAMES: Final = 3
_LIVE_FRAMES: Final = 4


@dataclass(frozen=True, slots=True)
class RelayEndpoint:
    """Where the streams of all workers are, behind a relay.

    Attributes:
        address: Where it publishes.
        replay: Where it passes on what is asked of engines.
        bind: False, as for an engine that listens.
    """

    address: str
    replay: str
    bind: bool = False

    def of_rank(self, rank: int) -> RelayEndpoint:
        """Return where a rank is: at the same place.

        Args:
            rank: The rank.

        Returns:
            This.
        """
        del rank
        return self


@dataclass(frozen=True, slots=True)
class StreamSign:
    """How a stream is at the relay.

    Attributes:
        life: Names the life of the relay.
        connection: Number of the relay's connection to the engine, of all it made.
        known: Whether the relay has the worker.
        connected: Whether it is connected to the engine.
        replayable: Whether the engine has a replay socket.
    """

    life: bytes
    connection: int
    known: bool = True
    connected: bool = False
    replayable: bool = False

    def packed(self) -> bytes:
        """Write it as a frame."""
        return _SIGN.pack(self.life, self.connection, self.known, self.connected, self.replayable)


class Relayed(NamedTuple):
    """A message of a relay.

    Attributes:
        sign: How the stream is.
        last: Number of the last live message on this connection, this one included; None if there is none.
        live: Number and payload, None for a message that only says how the stream is.
    """

    sign: StreamSign
    last: int | None
    live: tuple[int | None, bytes] | None = None


def relay_endpoint(address: str) -> RelayEndpoint:
    """Return where a relay's sockets are.

    Args:
        address: Where it publishes; it answers at the port above.

    Returns:
        Both.

    Raises:
        ValueError: This is no such address.

    Example:
        >>> from cachelb.events.relayed import relay_endpoint
        >>> relay_endpoint("tcp://relay:7800").replay
        'tcp://relay:7801'
    """
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not address.startswith("tcp://") or host in {None, "*"} or port is None or port not in _PORTS:
        raise ValueError(f"relay must be an address like tcp://10.0.0.2:7800, got {address!r}")
    return RelayEndpoint(address, f"{address.rpartition(':')[0]}:{port + 1}")


def stream_name(where: Where) -> bytes:
    """Write which stream is meant; none begins with another one.

    Args:
        where: Key of the worker, and rank, None for a worker without ranks.

    Returns:
        The frame.

    Example:
        >>> from cachelb.events.relayed import named_stream, stream_name
        >>> named_stream(stream_name(("gpu0", None))), named_stream(stream_name(("gpu0", 2)))
        (('gpu0', None), ('gpu0', 2))
    """
    key, rank = where
    written = key.encode()
    return _KEY.pack(len(written)) + written + _RANK.pack(_NO_RANK if rank is None else rank)


def named_stream(name: bytes) -> Where | None:
    """Read which stream is meant.

    Args:
        name: The frame.

    Returns:
        Key and rank, None if this is no such frame.
    """
    if len(name) < _KEY.size + _RANK.size or _KEY.unpack_from(name)[0] != len(name) - _KEY.size - _RANK.size:
        return None
    try:
        key = name[_KEY.size : -_RANK.size].decode()
    except UnicodeDecodeError:
        return None
    rank: int = _RANK.unpack(name[-_RANK.size :])[0]
    return key, None if rank == _NO_RANK else rank


def state_frames(name: bytes, sign: StreamSign, last: int | None) -> list[bytes]:
    """Write how a stream is.

    Args:
        name: Which.
        sign: How it is.
        last: Number of the last live message, None if there is none.

    Returns:
        The frames.
    """
    return [name, sign.packed(), _numbered(last)]


def live_frames(name: bytes, sign: StreamSign, seq: int | None, payload: bytes) -> list[bytes]:
    """Write a live message; number and payload are the engine's.

    Args:
        name: Which stream.
        sign: How it is.
        seq: Number of the message, None if it has none.
        payload: Its payload.

    Returns:
        The frames.
    """
    return [name, sign.packed(), _numbered(seq), payload]


def split_relayed(frames: Sequence[bytes]) -> Relayed | None:
    """Take a message of a relay apart.

    Args:
        frames: The frames as received.

    Returns:
        What it says, None if this is no message of a relay.
    """
    if len(frames) not in (_STATE_FRAMES, _LIVE_FRAMES) or len(frames[1]) != _SIGN.size:
        return None
    sign = StreamSign(*_SIGN.unpack(frames[1]))
    numbered = split_live([*frames[1:3], b""] if frames[2] else [b"", b""])
    if numbered is None:
        return None
    last, _ = numbered
    return Relayed(sign, last, None if len(frames) == _STATE_FRAMES else (last, frames[3]))


def _numbered(seq: int | None) -> bytes:
    return b"" if seq is None else seq.to_bytes(8, "big")
