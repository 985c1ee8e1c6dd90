"""A TCP proxy that can be cut and slowed down."""

from __future__ import annotations

import contextlib
import socket
import threading
import time


class CuttingProxy:
    """Forwards ports, by default one and that above it, to those of another address of this host.

    Attributes:
        delay_s: Seconds that whatever comes is kept.
    """

    def __init__(self, port: int, target: int, *, ports: int = 2) -> None:
        self.delay_s = 0.0
        self._pairs = {port + at: target + at for at in range(ports)}
        self._listening: list[socket.socket] = []
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._flows = threading.Event()
        self.heal()

    def heal(self) -> None:
        """Let everything through."""
        self._flows.set()
        if self._listening:
            return
        for port, target in self._pairs.items():
            listener = socket.create_server(("127.0.0.1", port))
            self._listening.append(listener)
            self._spawn(self._accept, listener, target)

    def cut(self) -> None:
        """End all connections, and refuse new ones."""
        for listener in self._listening:
            # Closing alone does not wake a thread that waits in `accept`.
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        self._listening.clear()
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def hold(self) -> None:
        """Let nothing through, silently: connections stay, and can be made."""
        self._flows.clear()

    def close(self) -> None:
        """Cut, and wait for the threads."""
        self._flows.set()
        self.cut()
        for thread in self._threads:
            thread.join()

    def _spawn(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        thread.start()
        self._threads.append(thread)

    def _accept(self, listener: socket.socket, target: int) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", target))
            except OSError:
                near.close()
                continue
            with self._lock:
                self._open |= {near, far}
            ends = [near, far]
            self._spawn(self._forward, near, far, ends)
            self._spawn(self._forward, far, near, ends)

    def _forward(self, source: socket.socket, sink: socket.socket, ends: list[socket.socket]) -> None:
        try:
            while data := source.recv(1 << 16):
                self._flows.wait()
                time.sleep(self.delay_s)
                sink.sendall(data)
        except OSError:
            pass
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
        with self._lock:
            ends.remove(source)
            if not ends:
                for end in (source, sink):
                    self._open.discard(end)
                    end.close()
