"""Addresses that workers listen at, which stay theirs while a worker is down, and how they listen."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

_HOST: Final = "127.0.0.1"
_BACKLOG: Final = 1024


class TcpAddress:
    """A port on loopback, any free one by default, held until `release`.

    A second socket stays bound to it without listening: clients are refused, and no other socket gets the port.
    """

    def __init__(self, port: int = 0) -> None:
        self._held: socket.socket | None = _bound(port)
        self._port: int = self._held.getsockname()[1]
        self.url = f"http://{_HOST}:{self._port}"
        if sys.platform != "linux":  # where a port that is bound already cannot be bound again to listen
            self.release()

    def bind(self) -> socket.socket:
        """Return a new socket bound to the port."""
        return _bound(self._port)

    def release(self) -> None:
        """Give the port back. Idempotent."""
        if self._held is not None:
            self._held.close()
            self._held = None


class UnixAddress:
    """A unix socket."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.url = f"unix://{path}"

    def bind(self) -> socket.socket:
        """Return a new socket bound to the path."""
        # Moved into its place, so that clients meet the old file, which refuses them, or the new one, but never none.
        new = self._path.with_suffix(".new")
        bound = socket.socket(socket.AF_UNIX)
        try:
            bound.bind(str(new))
            new.rename(self._path)
        except OSError:
            bound.close()
            raise
        return bound

    def release(self) -> None:
        """Remove the file. Idempotent."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()


class Listener:
    """Accepts connections until it is closed.

    An `asyncio.Server` that is closed while it accepts leaks the connection; this one waits for it.
    """

    def __init__(self, bound: socket.socket, protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        self._socket = bound
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._accepting: set[asyncio.Task[None]] = set()
        bound.settimeout(0)
        bound.listen(_BACKLOG)
        self._loop.add_reader(bound, self._accept)

    async def close(self) -> None:
        """Refuse connections from now on; every one that was accepted has its protocol when this returns."""
        self._loop.remove_reader(self._socket)
        self._socket.close()
        if self._accepting:
            await asyncio.wait(self._accepting)

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except (BlockingIOError, ConnectionAbortedError):  # the client gave up first
            return
        connection.settimeout(0)
        task = self._loop.create_task(self._connect(connection))
        self._accepting.add(task)
        task.add_done_callback(self._accepting.discard)

    async def _connect(self, connection: socket.socket) -> None:
        await self._loop.connect_accepted_socket(self._protocol, connection)


def _bound(port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((_HOST, port))
    except OSError:
        bound.close()
        raise
    return bound
