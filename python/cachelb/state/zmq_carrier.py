"""Messages over ZeroMQ: one socket to publish, one to answer, two to every peer."""

from __future__ import annotations

import hashlib
import logging
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import zmq
from zmq.utils import z85

from cachelb.events.sockets import bound_pair
from cachelb.state.carrier import Asked, Heard

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_log = logging.getLogger("cachelb.state")

_HWM: Final = 10_000
_MAX_MESSAGE_BYTES: Final = 16 << 20
_RECONNECT_MS: Final = (50, 1000)
_PEERS_S: Final = 2.0
_AT_ONCE: Final = 256
_ASK: Final = b"all"


@dataclass(slots=True)
class _Peer:
    news: zmq.Socket[bytes]
    asking: zmq.Socket[bytes]


class ZmqCarrier:
    """Publishes at an address, listens to those of peers.

    Args:
        bind: Where to publish; the port above answers.
        peers: Addresses of peers, or a function that returns them.
        secret: What all share, None for none.

    Raises:
        OSError: The address cannot be used.
    """

    def __init__(self, bind: str, peers: Sequence[str] | Callable[[], Sequence[str]], secret: str | None) -> None:
        self._context = zmq.Context()
        self._keys = None if secret is None else _keys(secret)
        self._wanted = peers
        self._peers: dict[str, _Peer] = {}
        self._addresses: dict[zmq.Socket[bytes], str] = {}
        self._due_s = 0.0
        self._poller = zmq.Poller()
        try:
            self._news, self._answers, self.address = bound_pair(
                lambda: self._socket(zmq.PUB, server=True), lambda: self._socket(zmq.ROUTER, server=True), bind
            )
        except BaseException:
            self._context.destroy(0)
            raise
        self._poller.register(self._answers, zmq.POLLIN)

    def open(self) -> None:
        """Connect to the peers."""
        self._follow(time.monotonic())

    def publish(self, message: bytes) -> None:
        """Send to all who listen; to one who does not read, nothing is sent."""
        self._news.send(message)

    def ask(self, origin: int, address: str) -> None:
        """Ask the peer at an address to tell everything."""
        peer = self._peers.get(address)
        if peer is not None:
            try:
                peer.asking.send_multipart([_ASK, origin.to_bytes(8, "little")], zmq.NOBLOCK)
            except zmq.Again:
                _log.debug("%s cannot be asked yet", address)

    def answer(self, return_to: bytes, messages: Sequence[bytes]) -> None:
        """Tell a peer who asked."""
        for message in messages:
            self._answers.send_multipart([return_to, message])

    def receive(self, timeout_s: float) -> list[Heard | Asked]:
        """Wait for messages of peers."""
        now = time.monotonic()
        if now >= self._due_s:
            self._follow(now)
        found: list[Heard | Asked] = []
        for socket, _ in self._poller.poll(max(0, math.ceil(timeout_s * 1000))):
            if not isinstance(socket, zmq.Socket):
                continue
            for _ in range(_AT_ONCE):
                try:
                    frames = socket.recv_multipart(zmq.NOBLOCK)
                except zmq.Again:
                    break
                if socket is not self._answers:
                    found.append(Heard(frames[-1], self._addresses[socket]))
                elif len(frames) == 3 and frames[1] == _ASK:  # noqa: PLR2004 - who, what, whom
                    found.append(Asked(frames[0]))
        return found

    def close(self) -> None:
        """Close every socket."""
        self._context.destroy(0)

    # --- peers ---

    def _follow(self, now: float) -> None:
        self._due_s = now + _PEERS_S
        wanted = set(self._wanted() if callable(self._wanted) else self._wanted) - {self.address}
        for address in self._peers.keys() - wanted:
            peer = self._peers.pop(address)
            for socket in (peer.news, peer.asking):
                self._poller.unregister(socket)
                del self._addresses[socket]
                socket.close(0)
        for address in wanted - self._peers.keys():
            self._connect(address)

    def _connect(self, address: str) -> None:
        parts = urlsplit(address)
        if parts.scheme != "tcp" or parts.hostname is None or parts.port is None:
            raise ValueError(f"a peer must be an address like tcp://10.0.0.2:7700, got {address!r}")
        news, asking = self._socket(zmq.SUB), self._socket(zmq.DEALER)
        news.subscribe(b"")
        news.connect(address)
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        asking.connect(f"tcp://{host}:{parts.port + 1}")
        self._peers[address] = _Peer(news, asking)
        for socket in (news, asking):
            self._addresses[socket] = address
            self._poller.register(socket, zmq.POLLIN)

    def _socket(self, kind: int, *, server: bool = False) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        options = {
            zmq.LINGER: 0,
            zmq.RCVHWM: _HWM,
            zmq.SNDHWM: 0 if kind == zmq.ROUTER else _HWM,
            zmq.IPV6: 1,
            zmq.MAXMSGSIZE: _MAX_MESSAGE_BYTES,
            zmq.RECONNECT_IVL: _RECONNECT_MS[0],
            zmq.RECONNECT_IVL_MAX: _RECONNECT_MS[1],
            zmq.HEARTBEAT_IVL: 1000,
            zmq.HEARTBEAT_TIMEOUT: 3000,
        }
        for option, value in options.items():
            socket.set(option, value)
        if self._keys is not None:
            public, private = self._keys
            socket.curve_publickey, socket.curve_secretkey = public, private
            if server:
                socket.curve_server = True
            else:
                socket.curve_serverkey = public
        return socket


def _keys(secret: str) -> tuple[bytes, bytes]:
    """Make one pair of keys of a secret. Who does not know it does not know the public key either."""
    private = z85.encode(hashlib.scrypt(secret.encode(), salt=b"cachelb mesh", n=1 << 14, r=8, p=1, dklen=32))
    return zmq.curve_public(private), private
