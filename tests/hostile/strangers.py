"""Peers that speak ZeroMQ, or nothing at all, over plain sockets."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + b"\0" + bytes(31)
_TIMEOUT_S = 30.0


def place(address: str, *, above: int = 0) -> tuple[str, int]:
    """Host and port of an address, or of one at a port above it."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    return host, int(port) + above


@contextlib.contextmanager
def silent_connections(count: int, *places: tuple[str, int]) -> Iterator[list[socket.socket]]:
    """Connections that never send anything, so many to each place."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(where, _TIMEOUT_S)) for where in places for _ in range(count)
        ]


def is_ended(connection: socket.socket) -> bool:
    """Read until the other side ends the connection; false if it does not."""
    try:
        while connection.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def subscribe_often(where: tuple[str, int], count: int, size: int) -> None:
    """Ask for so many random topics, as a SUB socket without authentication."""
    ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB"
    with socket.create_connection(where, _TIMEOUT_S) as connection, contextlib.suppress(OSError):
        connection.sendall(_GREETING)
        _read(connection, len(_GREETING))
        connection.sendall(bytes([4, len(ready)]) + ready)
        for _ in range(0, count, 100):
            topics = (os.urandom(size) for _ in range(100))
            connection.sendall(b"".join(bytes([0, size + 1, 1]) + topic for topic in topics))
        connection.shutdown(socket.SHUT_WR)
        is_ended(connection)


def _read(connection: socket.socket, size: int) -> None:
    while size > 0:
        found = connection.recv(size)
        if not found:
            return
        size -= len(found)


def resident_mb() -> float:
    """Memory of this process."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize() / (1 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)  # the most there was, on macOS
