"""ZeroMQ sockets as the subscriber needs them, and the one poller over all of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Protocol

import zmq

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MAX_SOCKETS: Final = 32_768
"""Of one context. ZeroMQ's own limit of 1023 is reached with some 300 streams, as each has a monitor of two sockets."""

_MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""A peer that sends more is cut off; a batch of a million tokens has 5 MB."""

_ATTEMPTS: Final = 20
_RECONNECT_MS: Final = (100, 2000)
_CONNECT_TIMEOUT_MS: Final = 5000

# A host that vanished sends no end of connection. Heartbeats of ZeroMQ would need peers that answer them.
_KEEPALIVE: Final = {
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 10,
    zmq.TCP_KEEPALIVE_INTVL: 5,
    zmq.TCP_KEEPALIVE_CNT: 3,
}

_WATCHED: Final = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class Owner(Protocol):
    """Whose sockets are polled."""

    def on_readable(self) -> None:
        """Read what there is, without waiting."""
        ...


class Hub:
    """All sockets of one thread. Made and used in that thread only."""

    def __init__(self, wake_fd: int) -> None:
        """Make the context.

        Args:
            wake_fd: A file descriptor whose being readable ends `wait` early.
        """
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)
        self._poller = zmq.Poller()
        self._poller.register(wake_fd, zmq.POLLIN)
        self._owners: dict[zmq.Socket[bytes], Owner] = {}

    def subscriber(self, owner: Owner, topic_filter: bytes, rcvhwm: int) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        """Make a SUB socket and its monitor, both polled.

        Args:
            owner: Who reads them.
            topic_filter: What topics begin with.
            rcvhwm: Messages kept for it while nobody reads.

        Returns:
            The socket, not connected, and the monitor.
        """
        socket = self._socket(zmq.SUB, rcvhwm)
        try:
            monitor = socket.get_monitor_socket(_WATCHED)
        except zmq.ZMQError:
            socket.close(0)
            raise
        socket.subscribe(topic_filter)
        self._poll(socket, owner)
        self._poll(monitor, owner)
        return socket, monitor

    def dealer(self, owner: Owner, address: str, hwm: int = 0) -> zmq.Socket[bytes]:
        """Make a DEALER socket, connected and polled.

        Args:
            owner: Who reads it.
            address: Where to connect to.
            hwm: Messages kept for it while nobody reads, 0 for all.

        Returns:
            The socket.
        """
        # Without a limit: a ROUTER drops what a peer does not take at once. An engine keeps a bounded number anyway.
        socket = self._socket(zmq.DEALER, hwm)
        try:
            socket.connect(address)
        except zmq.ZMQError:
            socket.close(0)
            raise
        self._poll(socket, owner)
        return socket

    def servers(self, owner: Owner, bind: str, hwm: int) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes], str]:
        """Make an XPUB socket that tells of every subscription, and a ROUTER that tells of peers that are gone.

        Args:
            owner: Who reads them.
            bind: Where the first one listens; the second one at the port above.
            hwm: Messages kept for a peer that does not read; more are lost.

        Returns:
            Both, and the address with the port that was found.

        Raises:
            OSError: They cannot listen there.
        """

        def make(kind: int, option: int) -> zmq.Socket[bytes]:
            socket = self._socket(kind, hwm)
            socket.set(zmq.SNDHWM, hwm)
            socket.set(option, 1)
            return socket

        publishing, answering, address = bound_pair(
            lambda: make(zmq.XPUB, zmq.XPUB_VERBOSER), lambda: make(zmq.ROUTER, zmq.ROUTER_MANDATORY), bind
        )
        self._poll(publishing, owner)
        self._poll(answering, owner)
        return publishing, answering, address

    def close(self, *sockets: zmq.Socket[bytes]) -> None:
        """Close sockets at once; monitors are closed with theirs and come first.

        Args:
            sockets: The sockets.
        """
        for socket in sockets:
            self._owners.pop(socket, None)
            self._poller.unregister(socket)
            socket.close(0)

    def wait(self, timeout_s: float) -> list[Owner]:
        """Wait until something can be read.

        Args:
            timeout_s: Seconds to wait at most.

        Returns:
            Whose sockets have something, each once.
        """
        ready = self._poller.poll(max(0, math.ceil(timeout_s * 1000)))
        found = (self._owners.get(socket) for socket, _ in ready if isinstance(socket, zmq.Socket))
        return list(dict.fromkeys(owner for owner in found if owner is not None))

    def end(self) -> None:
        """Close everything."""
        self.close(*self._owners)
        self._context.destroy(0)

    def _socket(self, kind: int, rcvhwm: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        options = {
            zmq.LINGER: 0,
            zmq.RCVHWM: rcvhwm,
            zmq.IPV6: 1,  # takes IPv4 as well
            zmq.MAXMSGSIZE: _MAX_MESSAGE_BYTES,
            zmq.RECONNECT_IVL: _RECONNECT_MS[0],
            zmq.RECONNECT_IVL_MAX: _RECONNECT_MS[1],
            zmq.CONNECT_TIMEOUT: _CONNECT_TIMEOUT_MS,
            **_KEEPALIVE,
        }
        for option, value in options.items():
            socket.set(option, value)
        return socket

    def _poll(self, socket: zmq.Socket[bytes], owner: Owner) -> None:
        self._owners[socket] = owner
        self._poller.register(socket, zmq.POLLIN)


def bound_pair(
    publishing: Callable[[], zmq.Socket[bytes]], answering: Callable[[], zmq.Socket[bytes]], bind: str
) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes], str]:
    """Make two sockets at a port and the one above; a free pair of ports takes a few attempts.

    Args:
        publishing: Makes the first.
        answering: Makes the second.
        bind: Where the first one listens: `tcp://host:port`, or `tcp://host:*` for any free pair.

    Returns:
        Both, and the address with the port that was found.

    Raises:
        OSError: They cannot listen there.
    """
    host, _, port = bind.rpartition(":")
    for left in reversed(range(_ATTEMPTS)):
        first, second = publishing(), answering()
        try:
            first.bind(bind)
            found = int(first.get_string(zmq.LAST_ENDPOINT).rstrip("\0").rpartition(":")[2])
            second.bind(f"{host}:{found + 1}")
        except zmq.ZMQError as error:
            first.close(0)
            second.close(0)
            if port != "*" or not left:
                raise OSError(error.errno, f"cannot publish at {bind} and the port above it: {error}") from error
        else:
            return first, second, f"{host}:{found}"
    raise AssertionError("unreachable")


def received(socket: zmq.Socket[bytes], limit: int) -> Iterator[list[bytes]]:
    """Read messages that are there.

    Args:
        socket: Where from.
        limit: How many at most.

    Yields:
        The frames of each.
    """
    for _ in range(limit):
        try:
            yield socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
