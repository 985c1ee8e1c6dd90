"""Messages over ZeroMQ: one socket to publish, one to answer, two to every peer."""

from __future__ import annotations

import hashlib
import logging
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import zmq
from zmq.utils import z85

from cachelb.events.sockets import bound_pair
from cachelb.state.carrier import Asked, Heard
from cachelb.state.lookup import Lookup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_log = logging.getLogger("cachelb.state")

_PART_BYTES: Final = 1 << 13  # of most messages at a high rate; at a low one they are smaller
_ANSWER_MESSAGES: Final = 256
_MAX_ANSWERS: Final = 16
_GIVE_UP_S: Final = 10.0
_MAX_MESSAGE_BYTES: Final = 16 << 20
_RECONNECT_MS: Final = (50, 500)
# On a network that swallows everything, nothing ends by itself: whoever cannot be heard is called anew.
_SILENCE_MS: Final = {
    zmq.HEARTBEAT_IVL: 500,
    zmq.HEARTBEAT_TIMEOUT: 1500,
    zmq.CONNECT_TIMEOUT: 500,
    zmq.HANDSHAKE_IVL: 2000,
}
_PEERS_S: Final = 2.0
_AT_ONCE: Final = 256
_ASK: Final = b"all"


@dataclass(slots=True)
class _Peer:
    news: zmq.Socket[bytes]
    asking: zmq.Socket[bytes]


@dataclass(slots=True)
class _Answer:
    messages: Sequence[bytes]
    moved_s: float
    sent: int = 0


class ZmqCarrier:
    """Publishes at an address, listens to those of peers.

    Args:
        bind: Where to publish; the port above answers.
        peers: Addresses of peers, or a function that returns them.
        secret: What all share, None for none.
        max_bytes: Bytes that may wait for a peer that does not read them, about.

    Raises:
        OSError: The address cannot be used.
    """

    def __init__(
        self, bind: str, peers: Sequence[str] | Callable[[], Sequence[str]], secret: str | None, max_bytes: int
    ) -> None:
        self._context = zmq.Context()
        self._keys = None if secret is None else _keys(secret)
        self._lookup = Lookup(peers, _PEERS_S) if callable(peers) else None
        self._fixed = set() if callable(peers) else set(peers)
        self._waiting = max(_ANSWER_MESSAGES, max_bytes // _PART_BYTES)
        self._answering: dict[bytes, _Answer] = {}
        self._peers: dict[str, _Peer] = {}
        self._left_out: set[str] = set()
        self._try_again_s = 0.0
        self._addresses: dict[zmq.Socket[bytes], str] = {}
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
        if self._lookup is None:
            self._listen_to(self._fixed)

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
        """Tell a peer who asked, as fast as it reads; an answer that it has not read yet is given up for this one."""
        if return_to in self._answering or len(self._answering) < _MAX_ANSWERS:
            now = time.monotonic()
            self._answering[return_to] = _Answer(messages, now)
            self._go_on_answering(now)

    def _go_on_answering(self, now: float) -> None:
        for return_to, answer in list(self._answering.items()):
            if self._was_answered(return_to, answer, now):
                del self._answering[return_to]

    def _was_answered(self, return_to: bytes, answer: _Answer, now: float) -> bool:
        """Send what a peer has room for. Returns whether there is no more to send, or nobody who reads it."""
        try:
            while answer.sent < len(answer.messages):
                self._answers.send_multipart([return_to, answer.messages[answer.sent]], zmq.NOBLOCK)
                answer.sent += 1
                answer.moved_s = now
        except zmq.Again:
            return now >= answer.moved_s + _GIVE_UP_S
        except zmq.ZMQError as error:
            _log.debug("a peer that asked is gone: %s", error)
        return True

    def receive(self, timeout_s: float) -> list[Heard | Asked]:
        """Wait for messages of peers."""
        now = time.monotonic()
        self._follow(now)
        self._go_on_answering(now)
        found: list[Heard | Asked] = []
        asked: set[bytes] = set()
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
                    asked.add(frames[0])
        return [*found, *(Asked(return_to) for return_to in sorted(asked))]

    def close(self) -> None:
        """Close every socket."""
        self._context.destroy(0)

    # --- peers ---

    def _follow(self, now: float) -> None:
        if self._lookup is not None:
            found = self._lookup.newest(now)
            if found is not None:
                self._listen_to(found)
        elif self._left_out and now >= self._try_again_s:
            self._try_again_s = now + _PEERS_S
            self._listen_to(self._fixed)

    def _listen_to(self, addresses: set[str]) -> None:
        wanted = addresses - {self.address}
        for address in self._peers.keys() - wanted:
            peer = self._peers.pop(address)
            for socket in (peer.news, peer.asking):
                self._poller.unregister(socket)
                del self._addresses[socket]
                socket.close(0)
        failed: set[str] = set()
        for address in sorted(wanted - self._peers.keys()):
            try:
                self._connect(address)
            except zmq.ZMQError as error:
                failed.add(address)
                if address not in self._left_out:
                    _log.warning("peer %s is left out for now, as no connection can be made: %s", address, error)
        self._left_out = failed

    def _connect(self, address: str) -> None:
        before, _, port = address.rpartition(":")
        sockets: list[zmq.Socket[bytes]] = []
        try:
            for kind, to in ((zmq.SUB, address), (zmq.DEALER, f"{before}:{int(port) + 1}")):
                sockets.append(self._socket(kind))
                if kind == zmq.SUB:
                    sockets[-1].subscribe(b"")
                sockets[-1].connect(to)
        except zmq.ZMQError:
            for socket in sockets:
                socket.close(0)
            raise
        self._peers[address] = _Peer(*sockets)
        for socket in sockets:
            self._addresses[socket] = address
            self._poller.register(socket, zmq.POLLIN)

    def _socket(self, kind: int, *, server: bool = False) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        # Questions to a peer that cannot be reached are not collected: each is answered with everything.
        waiting: dict[int, int] = {zmq.DEALER: 1, zmq.ROUTER: _ANSWER_MESSAGES}
        if kind == zmq.ROUTER:
            socket.set(zmq.ROUTER_MANDATORY, 1)
        options = {
            zmq.LINGER: 0,
            zmq.RCVHWM: self._waiting,
            zmq.SNDHWM: waiting.get(kind, self._waiting),
            zmq.IPV6: 1,
            zmq.MAXMSGSIZE: _MAX_MESSAGE_BYTES,
            zmq.RECONNECT_IVL: _RECONNECT_MS[0],
            zmq.RECONNECT_IVL_MAX: _RECONNECT_MS[1],
            **_SILENCE_MS,
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
