"""The carrier over ZeroMQ: one socket to publish, one to answer, two to every peer."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import zmq

from cachelb.common.secret import Secret
from cachelb.events.zmq.sockets import Listeners, bound_pair, curve_keys, make_server, make_socket, received
from cachelb.state.carrier import Asked, Received, Refused
from cachelb.state.lookup import Lookup

_log = logging.getLogger("cachelb.state")

_PART_BYTES: Final = 1 << 13  # of most messages at a high rate; at a low one they are smaller
_ANSWER_MESSAGES: Final = 256
_MAX_ANSWERS: Final = 16
_GIVE_UP_S: Final = 10.0
_MAX_MESSAGE_BYTES: Final = 16 << 20
# On a network that drops packets silently no connection ends by itself: a silent peer is reconnected.
_OPTIONS: Final[Mapping[int, int]] = {
    zmq.HEARTBEAT_IVL: 500,
    zmq.HEARTBEAT_TIMEOUT: 1500,
    zmq.CONNECT_TIMEOUT: 500,
    zmq.RECONNECT_IVL: 50,
    zmq.RECONNECT_IVL_MAX: 500,
}
_PEERS_S: Final = 2.0
_LISTEN_AGAIN_S: Final = 0.25
_LISTENERS: Final = 1024
_CALL_ANEW_S: Final = 10.0
"""Seconds until a silent peer is reconnected: after an oversized message ZeroMQ never retries by itself."""

_KEPT_MESSAGES: Final = 256  # of a peer while this thread is busy; further ones wait at the peer
_AT_ONCE: Final = 256
_FLOOD: Final = 4
"""Multiple of the bytes that may wait: a peer that sent more at once is reconnected, which frees them."""

_ALL: Final = b""
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
    """Publishes at `bind`, answers at the port above, and subscribes to the peers.

    It answers with the first secret and calls peers with any. About `max_bytes` may wait for a peer that does not read.
    """

    def __init__(
        self,
        bind: str,
        peers: Sequence[str] | Callable[[], Sequence[str]],
        secrets: Sequence[Secret],
        max_bytes: int,
    ) -> None:
        self._context = zmq.Context()
        self._keys = [curve_keys(secret.key("mesh")) for secret in secrets]
        self._lookup = Lookup(peers, _PEERS_S) if callable(peers) else None
        self._fixed = set() if callable(peers) else set(peers)
        self._waiting = max(_ANSWER_MESSAGES, max_bytes // _PART_BYTES)
        self._most_at_once = _FLOOD * max_bytes
        self._answering: dict[bytes, _Answer] = {}
        self._peers: dict[str, list[_Peer]] = {}
        self._received_s: dict[str, float] = {}
        self._left_out: set[str] = set()
        self._try_again_s = self._listen_again_s = 0.0
        self._addresses: dict[zmq.Socket[bytes], str] = {}
        self._poller = zmq.Poller()
        try:
            self._news, self._answers, self.address = bound_pair(
                lambda: make_server(self._context, self._waiting, self._keys[0], _OPTIONS), bind
            )
        except BaseException:
            self._context.destroy(0)
            raise
        self._listeners = Listeners(self._news, _LISTENERS)
        for socket in (self._news, self._answers):
            self._poller.register(socket, zmq.POLLIN)

    def open(self) -> None:
        """Connect to the peers."""
        if self._lookup is None:
            self._listen_to(self._fixed)

    def publish(self, message: bytes) -> None:
        """Send to all subscribers, except those that do not read."""
        self._listeners.send(_ALL, [message])

    def ask(self, origin: int, address: str) -> None:
        """Request a snapshot of the peer at an address."""
        for peer in self._peers.get(address, ()):
            try:
                peer.asking.send_multipart([_ASK, origin.to_bytes(8, "little")], zmq.NOBLOCK)
            except zmq.Again:
                _log.debug("%s does not answer requests for a snapshot yet", address)

    def answer(self, return_to: bytes, messages: Sequence[bytes]) -> None:
        """Send a snapshot to a peer that requested it, as fast as it reads; replaces an unread one."""
        if return_to in self._answering or len(self._answering) < _MAX_ANSWERS:
            now = time.monotonic()
            self._answering[return_to] = _Answer(messages, now)
            self._go_on_answering(now)

    def _go_on_answering(self, now: float) -> None:
        for return_to, answer in list(self._answering.items()):
            if self._was_answered(return_to, answer, now):
                del self._answering[return_to]

    def _was_answered(self, return_to: bytes, answer: _Answer, now: float) -> bool:
        """Send as much as a peer has room for. Returns True if all is sent or the peer is gone."""
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

    def receive(self, timeout_s: float) -> list[Received | Asked | Refused]:
        """Wait for messages of peers."""
        now = time.monotonic()
        self._follow(now)
        self._listen_again(now)
        self._go_on_answering(now)
        found: list[Received | Asked | Refused] = []
        asked: set[bytes] = set()
        for socket, _ in self._poller.poll(max(0, math.ceil(timeout_s * 1000))):
            if socket is self._news:
                for frames in received(self._news, _AT_ONCE):
                    self._listeners.add(_ALL, frames[0])
            elif socket is self._answers:
                questions = received(self._answers, _AT_ONCE)
                asked.update(frames[0] for frames in questions if len(frames) == 3 and frames[1] == _ASK)  # noqa: PLR2004 - who, what, whom
            elif isinstance(socket, zmq.Socket) and socket in self._addresses:
                found += self._read(socket)
        return [*found, *(Asked(return_to) for return_to in sorted(asked))]

    def _read(self, socket: zmq.Socket[bytes]) -> Sequence[Received | Refused]:
        """Read a peer's messages. A peer that sends more than a router would is reconnected."""
        address = self._addresses[socket]
        found, size = [], 0
        for frames in received(socket, _AT_ONCE):
            found.append(Received(frames[-1], address))
            size += sum(map(len, frames))
            if size > self._most_at_once:
                self._call_later(address)
                return [Refused(f"it sent more than {self._most_at_once >> 20} MB at once", address)]
        self._received_s[address] = time.monotonic()
        return found

    def _call_later(self, address: str) -> None:
        """Close the connections to a peer, which frees their memory."""
        self._disconnect(address)
        self._left_out.add(address)
        self._try_again_s = time.monotonic() + _PEERS_S

    def _listen_again(self, now: float) -> None:
        """Subscribe at every peer again: it forgets subscribers when a connection ends."""
        if now >= self._listen_again_s:
            self._listen_again_s = now + _LISTEN_AGAIN_S
            for address, peers in list(self._peers.items()):
                if now > self._received_s[address] + _CALL_ANEW_S:
                    self._call_later(address)
                    continue
                for peer in peers:
                    with suppress(zmq.Again):  # there is no connection yet
                        peer.news.send(_ALL, zmq.NOBLOCK)

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
            self._disconnect(address)
        failed: set[str] = set()
        for address in sorted(wanted - self._peers.keys()):
            try:
                self._connect(address)
            except zmq.ZMQError as error:
                failed.add(address)
                if address not in self._left_out:
                    _log.warning("no connection to peer %s: %s; it is tried again", address, error)
        self._left_out = failed

    def _disconnect(self, address: str) -> None:
        del self._received_s[address]
        for socket in (socket for peer in self._peers.pop(address) for socket in (peer.news, peer.asking)):
            self._poller.unregister(socket)
            del self._addresses[socket]
            socket.close(0)

    def _connect(self, address: str) -> None:
        before, _, port = address.rpartition(":")
        sockets: list[zmq.Socket[bytes]] = []
        try:
            for keys, to in itertools.product(self._keys, (address, f"{before}:{int(port) + 1}")):
                # Requests to an unreachable peer are not queued: each is answered with a whole snapshot.
                socket = make_socket(
                    self._context,
                    zmq.DEALER,
                    receives=_KEPT_MESSAGES,
                    sends=1,
                    most_bytes=_MAX_MESSAGE_BYTES,
                    keys=keys,
                    options=_OPTIONS,
                )
                sockets.append(socket)
                socket.connect(to)
        except zmq.ZMQError:
            for socket in sockets:
                socket.close(0)
            raise
        self._received_s[address] = time.monotonic()
        self._peers[address] = [_Peer(*pair) for pair in zip(sockets[::2], sockets[1::2], strict=True)]
        for peer in self._peers[address]:
            peer.news.send(_ALL, zmq.NOBLOCK)
        for socket in sockets:
            self._addresses[socket] = address
            self._poller.register(socket, zmq.POLLIN)
