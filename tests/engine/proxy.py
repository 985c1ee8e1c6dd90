"""A network that a test cuts: a TCP port that stands before another one."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self

from tests.ports import free_ports

HOST = "127.0.0.1"
CONNECT_DEADLINE_S = 5.0


class Proxy:
    """Forwards connections to a port of this machine, from a port of its own that stays the same.

    Args:
        target: Port to forward to; nobody needs to listen there yet.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self.port = free_ports(1)[0]
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self._ends: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    @property
    def address(self) -> str:
        """Where a ZeroMQ socket connects."""
        return f"tcp://{HOST}:{self.port}"

    def mend(self) -> None:
        """Take connections, for the first time or again."""
        listener = socket.create_server((HOST, self.port))
        with self._lock:
            self._listener = listener
        self._run(self._accept, listener)

    def cut(self) -> None:
        """End every connection and refuse new ones; idempotent."""
        with self._lock:
            listener, self._listener = self._listener, None
            for end in [*self._ends, *([] if listener is None else [listener])]:
                _shut(end)
            threads, self._threads = self._threads, []
        for thread in threads:
            thread.join()

    def __enter__(self) -> Self:
        self.mend()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()

    def _run(self, target: object, *arguments: socket.socket) -> None:
        assert callable(target)
        thread = threading.Thread(target=target, args=arguments, name="proxy")
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        with listener:
            while True:
                try:
                    near, _ = listener.accept()
                except OSError:  # cut
                    return
                with self._lock:
                    if self._listener is not listener:
                        near.close()
                        return
                    self._ends.add(near)
                    self._run(self._serve, near)

    def _serve(self, near: socket.socket) -> None:
        with near, contextlib.suppress(OSError):
            far = socket.create_connection((HOST, self._target), CONNECT_DEADLINE_S)
            far.settimeout(None)
            with far:
                with self._lock:
                    is_whole = near in self._ends and self._listener is not None
                    self._ends.add(far)
                if is_whole:
                    back = threading.Thread(target=_pump, args=(far, near), name="proxy back")
                    back.start()
                    _pump(near, far)
                    back.join()
                with self._lock:
                    self._ends.discard(far)
        with self._lock:
            self._ends.discard(near)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Copy bytes until one side ends, then end both."""
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            sink.sendall(data)
    _shut(source)
    _shut(sink)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
