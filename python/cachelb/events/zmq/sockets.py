"""ZeroMQ sockets, all with memory limits, and the poller over those of a subscriber."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Protocol, TypeAlias

import zmq
from zmq.utils import z85

Keys: TypeAlias = tuple[bytes, bytes]

_MAX_SOCKETS: Final = 32_768
"""Sockets of one context. ZeroMQ's default of 1023 allows some 300 streams: each has a monitor of two sockets."""

EVENT_BYTES: Final = 8 << 20
"""Bytes of an engine's message; a longer one cuts the engine off. A batch of a million tokens has 7 MB."""

REQUEST_BYTES: Final = 16 << 10
"""Bytes of a message to a socket that only reads requests. They hold no more than a worker's key."""

REPLAY_MESSAGES: Final = 16
"""Replay messages kept while the thread is busy; others wait at the engine, and its drops are requested again."""

_ANSWERS: Final = 64
"""Replay messages kept for a gateway that does not read; the others wait."""

_REQUESTS: Final = 64
_ATTEMPTS: Final = 20

# For all sockets. A vanished host closes no connection, and ZeroMQ's heartbeats need peers that answer them.
_OPTIONS: Final[Mapping[int, int]] = {
    zmq.LINGER: 0,
    zmq.IPV6: 1,  # accepts IPv4 too
    zmq.BACKLOG: 128,
    zmq.HANDSHAKE_IVL: 2000,
    zmq.CONNECT_TIMEOUT: 5000,
    zmq.RECONNECT_IVL: 100,
    zmq.RECONNECT_IVL_MAX: 2000,
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


def make_socket(
    context: zmq.Context[zmq.Socket[bytes]],
    kind: int,
    *,
    receives: int,
    sends: int,
    most_bytes: int,
    keys: Keys | None = None,
    options: Mapping[int, int] | None = None,
) -> zmq.Socket[bytes]:
    """Make a socket with bounded memory per peer; all sockets of this package are made here.

    At most `receives` unread messages of a peer are kept, further ones wait at the peer; `sends` messages are kept for
    a peer that does not read. A peer that sends more than `most_bytes` in one message is cut off. `keys` are those of
    the server it connects to.
    """
    socket = context.socket(kind)
    limits: dict[int, int] = {zmq.RCVHWM: receives, zmq.SNDHWM: sends, zmq.MAXMSGSIZE: most_bytes}
    for option, value in [*_OPTIONS.items(), *limits.items(), *(options or {}).items()]:
        socket.set(option, value)
    if keys is not None:
        socket.curve_publickey, socket.curve_secretkey = keys
        socket.curve_serverkey = keys[0]
    return socket


def make_server(
    context: zmq.Context[zmq.Socket[bytes]], sends: int, keys: Keys | None, options: Mapping[int, int] | None = None
) -> zmq.Socket[bytes]:
    """Make a ROUTER socket that reads only requests, and notices that a peer is gone when it sends to it.

    It keeps `sends` messages for a peer that does not read. A PUB socket could publish too, but it keeps every
    subscription, with `XPUB_MANUAL` as well: one peer made one hold 800 MB within seconds.
    """
    socket = make_socket(
        context, zmq.ROUTER, receives=_REQUESTS, sends=sends, most_bytes=REQUEST_BYTES, options=options
    )
    socket.set(zmq.ROUTER_MANDATORY, 1)
    # With a domain, peers of ZMTP 1 and 2 are refused. They have no handshake, so that any bytes may be such a peer's.
    socket.set(zmq.ZAP_DOMAIN, b"cachelb")
    if keys is not None:
        socket.curve_publickey, socket.curve_secretkey = keys
        socket.curve_server = True
    return socket


def curve_keys(secret: bytes) -> Keys:
    """Make the one pair of keys, public and private, that servers and their peers share, of 32 secret bytes.

    Without the secret the public key is unknown too.
    """
    private = z85.encode(secret)
    return zmq.curve_public(private), private


class Listeners:
    """Peers that subscribed at a server, by the socket's name for their connection; at most `most`.

    They subscribe again now and then, since a reconnection gives them another name. `dropped` counts messages that a
    peer did not take fast enough.
    """

    def __init__(self, socket: zmq.Socket[bytes], most: int) -> None:
        self.dropped = 0
        self._socket = socket
        self._most = most
        self._topics: dict[bytes, set[bytes]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, topic: bytes, listener: bytes) -> bool:
        """Serve one more; return whether it is served."""
        known = self._topics.get(topic, ())
        if listener not in known:
            if self._count >= self._most:
                return False
            self._topics.setdefault(topic, set()).add(listener)
            self._count += 1
        return True

    def forget(self, topic: bytes) -> None:
        """Remove all listeners of a topic."""
        self._count -= len(self._topics.pop(topic, ()))

    def send(self, topic: bytes, frames: list[bytes]) -> None:
        """Send to all of a topic, without waiting for any."""
        listeners = self._topics.get(topic)
        if not listeners:
            return
        shared = [zmq.Frame(frame, copy=True) for frame in frames]  # one copy for all
        for listener in list(listeners):
            try:
                self._socket.send_multipart([listener, *shared], zmq.NOBLOCK, copy=False)
            except zmq.Again:
                self.dropped += 1
            except zmq.ZMQError:  # it is gone
                listeners.discard(listener)
                self._count -= 1


class Owner(Protocol):
    """The owner of polled sockets."""

    def on_readable(self) -> None:
        """Read without waiting."""
        ...


class Hub:
    """All sockets of one thread, made and used in that thread only."""

    def __init__(self, wake_fd: int) -> None:
        """Make the context; `wait` ends early once `wake_fd` is readable."""
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)
        self._poller = zmq.Poller()
        self._poller.register(wake_fd, zmq.POLLIN)
        self._owners: dict[zmq.Socket[bytes], Owner] = {}

    def subscriber(
        self, owner: Owner, topic_filter: bytes | None, rcvhwm: int, keys: Keys | None = None
    ) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        """Make a SUB socket, not connected yet, and its monitor, both polled.

        Without a topic filter it is a DEALER that requests a stream of a relay.
        """
        kind = zmq.DEALER if topic_filter is None else zmq.SUB
        socket = make_socket(self._context, kind, receives=rcvhwm, sends=1, most_bytes=EVENT_BYTES, keys=keys)
        try:
            monitor = socket.get_monitor_socket(_WATCHED)
        except zmq.ZMQError:
            socket.close(0)
            raise
        if topic_filter is not None:
            socket.subscribe(topic_filter)
        self._poll(socket, owner)
        self._poll(monitor, owner)
        return socket, monitor

    def dealer(self, owner: Owner, address: str, keys: Keys | None = None) -> zmq.Socket[bytes]:
        """Make a DEALER socket that requests a replay, connected and polled."""
        socket = make_socket(
            self._context, zmq.DEALER, receives=REPLAY_MESSAGES, sends=1, most_bytes=EVENT_BYTES, keys=keys
        )
        try:
            socket.connect(address)
        except zmq.ZMQError:
            socket.close(0)
            raise
        self._poll(socket, owner)
        return socket

    def servers(
        self, owner: Owner, bind: str, hwm: int, keys: Keys | None = None
    ) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes], str]:
        """Make two ROUTER sockets that only read requests, at `bind` and the port above; return both and the address.

        Messages beyond `hwm` for a peer of the first that does not read are lost.
        """
        publishing, answering, address = bound_pair(
            lambda: make_server(self._context, hwm, keys), bind, lambda: make_server(self._context, _ANSWERS, keys)
        )
        self._poll(publishing, owner)
        self._poll(answering, owner)
        return publishing, answering, address

    def pause(self, socket: zmq.Socket[bytes]) -> None:
        """Stop polling a socket until `resume`."""
        self._poller.unregister(socket)

    def resume(self, socket: zmq.Socket[bytes]) -> None:
        """Poll a socket again."""
        self._poller.register(socket, zmq.POLLIN)

    def close(self, *sockets: zmq.Socket[bytes]) -> None:
        """Close sockets at once; monitors are closed with theirs and come first."""
        for socket in sockets:
            self._owners.pop(socket, None)
            if socket in self._poller:
                self._poller.unregister(socket)
            socket.close(0)

    def wait(self, timeout_s: float) -> list[Owner]:
        """Wait until something can be read; return the owners of readable sockets, each once."""
        ready = self._poller.poll(max(0, math.ceil(timeout_s * 1000)))
        found = (self._owners.get(socket) for socket, _ in ready if isinstance(socket, zmq.Socket))
        return list(dict.fromkeys(owner for owner in found if owner is not None))

    def end(self) -> None:
        """Close everything."""
        self.close(*self._owners)
        self._context.destroy(0)

    def _poll(self, socket: zmq.Socket[bytes], owner: Owner) -> None:
        self._owners[socket] = owner
        self._poller.register(socket, zmq.POLLIN)


def bound_pair(
    make: Callable[[], zmq.Socket[bytes]], bind: str, make_second: Callable[[], zmq.Socket[bytes]] | None = None
) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes], str]:
    """Make two sockets at a port and the one above; return both, and the address with the port found.

    `bind` is `tcp://host:port`, or `tcp://host:*` for any free pair of ports, which takes a few attempts.
    """
    host, _, port = bind.rpartition(":")
    for left in reversed(range(_ATTEMPTS)):
        first, second = make(), (make_second or make)()
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
    """Read messages that are there, up to a limit."""
    for _ in range(limit):
        try:
            yield socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
