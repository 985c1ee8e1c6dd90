"""The protocol between a relay and the gateways behind it.

The relay publishes the streams of all workers at one address; the first frame of a message names the stream, for
subscriptions too. Every message carries the state of the stream: whether the relay is connected to the engine, and a
number that changes with every connection. A client that sees another number may have missed messages.
The state is also sent every two seconds, with the number of the last live message, which may have been dropped.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from cachelb.events.endpoints import pair_address
from cachelb.events.zmq.frames import split_live

Where: TypeAlias = tuple[str, int | None]

_KEY: Final = struct.Struct(">I")
_RANK: Final = struct.Struct(">i")
_SIGN: Final = struct.Struct(">8sQ???")
_NO_RANK: Final = -1
_STATE_FRAMES: Final = 3
_LIVE_FRAMES: Final = 4


@dataclass(frozen=True, slots=True)
class RelayEndpoint:
    """The endpoint of all workers' streams behind a relay."""

    address: str
    replay: str  # forwards requests to engines
    bind: bool = False  # as for an engine that listens

    def of_rank(self, rank: int) -> RelayEndpoint:
        """Return the endpoint of a rank: all ranks share one."""
        del rank
        return self


@dataclass(frozen=True, slots=True)
class StreamSign:
    """The state of a stream at the relay."""

    life: bytes  # id of the relay's run
    connection: int  # number of the relay's connection to the engine, of all it made
    known: bool = True  # the relay has the worker
    connected: bool = False  # to the engine
    replayable: bool = False  # the engine has a replay socket

    def packed(self) -> bytes:
        """Encode it as a frame."""
        return _SIGN.pack(self.life, self.connection, self.known, self.connected, self.replayable)


class Relayed(NamedTuple):
    """A message of a relay."""

    sign: StreamSign
    last: int | None  # number of the last live message on this connection, this one included
    live: tuple[int | None, bytes] | None = None  # number and payload, None for a message of state alone


def relay_endpoint(address: str) -> RelayEndpoint:
    """Return the sockets of a relay at its address, such as `tcp://10.0.0.2:7800`."""
    host, _, port = pair_address("relay", address, "tcp://10.0.0.2:7800").rpartition(":")
    return RelayEndpoint(address, f"{host}:{int(port) + 1}")


def stream_name(where: Where) -> bytes:
    """Write the frame that names a stream; no name is a prefix of another.

    Example:
        >>> from cachelb.events.zmq.relayed import named_stream, stream_name
        >>> named_stream(stream_name(("gpu0", None))), named_stream(stream_name(("gpu0", 2)))
        (('gpu0', None), ('gpu0', 2))
    """
    key, rank = where
    written = key.encode()
    return _KEY.pack(len(written)) + written + _RANK.pack(_NO_RANK if rank is None else rank)


def named_stream(name: bytes) -> Where | None:
    """Read key and rank from a frame that names a stream, None for another frame."""
    if len(name) < _KEY.size + _RANK.size or _KEY.unpack_from(name)[0] != len(name) - _KEY.size - _RANK.size:
        return None
    try:
        key = name[_KEY.size : -_RANK.size].decode()
    except UnicodeDecodeError:
        return None
    rank: int = _RANK.unpack(name[-_RANK.size :])[0]
    return key, None if rank == _NO_RANK else rank


def state_frames(name: bytes, sign: StreamSign, last: int | None) -> list[bytes]:
    """Write the state of a stream."""
    return [name, sign.packed(), _numbered(last)]


def live_frames(name: bytes, sign: StreamSign, seq: int | None, payload: bytes) -> list[bytes]:
    """Write a live message; number and payload are the engine's."""
    return [name, sign.packed(), _numbered(seq), payload]


def split_relayed(frames: Sequence[bytes]) -> Relayed | None:
    """Split a relay's message, None for anything else."""
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
