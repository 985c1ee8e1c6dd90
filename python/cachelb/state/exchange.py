"""The thread that exchanges messages between a router and a carrier.

Local changes are published every few milliseconds. Nothing is acknowledged: entries are numbered, a heartbeat carries
the latest number, and a router that misses some requests a snapshot. Messages received meanwhile are kept, since they
follow the snapshot.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cachelb._core import message_origin
from cachelb.errors import CachelbError
from cachelb.state.carrier import Asked, Refused
from cachelb.state.kinds import is_part
from cachelb.state.lag import Lag
from cachelb.types import PeerStats, StateStats

if TYPE_CHECKING:
    from typing import Any

    from cachelb.router import Router
    from cachelb.state.carrier import Carrier
    from cachelb.state.options import ExchangeSettings

_log = logging.getLogger("cachelb.state")

_HEARTBEAT_S = 0.25
_HELD_S = 0.05
"""How long first tokens and ends wait for a booking to go with: alone, the frame is ten times their size."""
_ASK_AGAIN_S = 1.0
_STANDS_STILL_S = 10.0
"""Seconds after which an unfinished snapshot is given up, by its sender too."""
_KEPT_MESSAGES = 4096
_MOST_PEERS = 1024
"""Routers to receive from at once; the core has the same limit."""

_ALL_KEPT = 4
"""Bytes of messages kept of all routers, as a multiple of those of one."""

_MOST_ASKERS = 256
_SEND_ALL_S = 0.1
_SEND_ALL_PAUSES = 50
"""Pause after a snapshot before further requests are answered, as a multiple of the time it took."""
_RECONNECT_S = (0.1, 0.5)
_AFTER_A_FAULT_S = 2.0
_WARN_AGAIN_S = 10.0


@dataclass(slots=True)
class _Peer:
    address: str
    received_s: float
    gaps: int = 0
    snapshots: int = 0
    asked_s: float | None = None
    missing_s: float | None = None
    part_s: float | None = None
    lag: Lag = field(default_factory=Lag)
    kept: deque[bytes] = field(default_factory=deque)
    kept_bytes: int = 0

    def keep(self, message: bytes, most_bytes: int) -> None:
        """Keep a message for after the snapshot. The oldest are dropped first; a gap then requests a newer snapshot."""
        self.kept.append(message)
        self.kept_bytes += len(message)
        while self.kept_bytes > most_bytes or len(self.kept) > _KEPT_MESSAGES:
            self.kept_bytes -= len(self.kept.popleft())


class Exchange:
    """Runs until stopped. Only its thread applies remote state to the router."""

    def __init__(self, router: Router[Any], carrier: Carrier, settings: ExchangeSettings) -> None:
        """Prepare; `start` begins."""
        self.pid = os.getpid()
        self.origin = int.from_bytes(os.urandom(8), "little")
        self._state = router.shared_state
        self._carrier = carrier
        self._settings = settings
        self._stopping = threading.Event()
        self._warm = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cachelb-state", daemon=True)
        self._begun = False
        self._peers: dict[int, _Peer] = {}
        self._askers: dict[bytes, None] = {}
        self._send_all_s = float("-inf")
        self._lock = threading.Lock()
        self._start = "cold: no peer sent state yet"
        names = ("sent", "sent_bytes", "received", "refused", "gaps", "snapshots", "failures")
        self._counts = dict.fromkeys(names, 0)
        self._failing = ""
        self._warned_s = float("-inf")

    def start(self, *, wait: bool) -> None:
        """Start, and if requested, wait for a peer's snapshot as long as the settings allow."""
        settings = self._settings
        for policy in self._state.begin(
            self.origin, settings.ttl_s, settings.max_bytes, share_fleet=settings.share_fleet, exchange=self
        ):
            _log.warning(
                "policy %s keeps prompts in a tree, which is not shared: other routers receive only its load", policy
            )
        self._begun = True
        try:
            self._thread.start()
        except RuntimeError:  # no more threads
            self._begun = False
            raise
        wait_s = min(self._settings.warm_start_s, threading.TIMEOUT_MAX) if wait else 0.0
        if wait_s > 0 and not self._warm.wait(wait_s):
            why = f", {self._failing}" if self._failing else ""
            self._start = f"cold: no peer sent state within {wait_s:g} s{why}"
            _log.warning("this router starts cold: no peer sent a snapshot within %g s%s", wait_s, why)
        if self._stopping.is_set():
            # Stopped meanwhile, perhaps before there was a thread to stop.
            self.stop()

    def stop(self) -> None:
        """Stop, and wait for the thread, unless called in it: a finalizer runs anywhere. The router goes on alone."""
        self._stopping.set()
        self._warm.set()
        if not self._begun:
            self._carrier.close()
        elif self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        self._state.end(self)

    def stats(self) -> StateStats:
        """Return the counters of sent and received state."""
        now = time.monotonic()
        bookings, counts = self._state.counts()
        with self._lock:
            peers = tuple(
                PeerStats(
                    origin=origin,
                    address=peer.address,
                    silent_s=max(0.0, now - peer.received_s),
                    lag_s=max(peer.lag.late_s, 0.0 if peer.missing_s is None else now - peer.missing_s),
                    bookings=bookings.get(origin, 0),
                    gaps=peer.gaps,
                    snapshots=peer.snapshots,
                )
                for origin, peer in self._peers.items()
            )
        return StateStats(
            origin=self.origin,
            peers=peers,
            start=self._start,
            failing=self._failing,
            **self._counts,
            **counts,
        )

    # --- the thread ---

    def _run(self) -> None:
        wait_s = _RECONNECT_S[0]
        while not self._stopping.is_set():
            try:
                self._carrier.open()
                self._failing = ""
                wait_s = _RECONNECT_S[0]
                self._trade()
            except ConnectionError as error:
                self._counts["failures"] += 1
                if not self._failing:
                    _log.warning("state is not shared for now: %s", error)
                self._failing = str(error)
                self._expire(time.monotonic())
                self._stopping.wait(wait_s)
                wait_s = min(2 * wait_s, _RECONNECT_S[1])
            except Exception as error:  # noqa: BLE001 - neither routing nor sharing may stop
                self._counts["failures"] += 1
                self._failing = f"{type(error).__name__}: {error}"
                _log.exception("sharing failed; it begins again")
                self._stopping.wait(_AFTER_A_FAULT_S)
        self._carrier.close()

    def _trade(self) -> None:
        beat_s = all_s = 0.0
        while not self._stopping.is_set():
            now = time.monotonic()
            if now >= min(all_s, beat_s) or self._state.is_urgent():
                all_s = now + _HELD_S
                self._publish(*self._state.publish())
            if now >= beat_s:
                beat_s = now + _HEARTBEAT_S
                heartbeat = self._state.heartbeat(time.monotonic_ns() // 1000)
                if heartbeat is not None:
                    self._publish(heartbeat)
                self._expire(now)
                self._ask_again(now)
            next_s = now + self._settings.interval_s
            left_s = self._settings.interval_s
            while left_s > 0 and not self._stopping.is_set():
                for item in self._carrier.receive(left_s):
                    if isinstance(item, Asked):
                        if len(self._askers) < _MOST_ASKERS:
                            self._askers[item.return_to] = None
                    elif isinstance(item, Refused):
                        self._refuse(item.address, item.reason)
                    else:
                        self._receive(item.message, item.address)
                self._answer_askers()
                left_s = next_s - time.monotonic()

    def _answer_askers(self) -> None:
        """Send a snapshot to all peers that requested one since the last; it follows the requests, so it has no gap."""
        begun_s = time.monotonic()
        if self._askers and begun_s >= self._send_all_s:
            askers, self._askers = self._askers, {}
            everything = self._state.publish_all()
            for return_to in askers:
                self._carrier.answer(return_to, everything)
            now = time.monotonic()
            self._send_all_s = now + min(max(_SEND_ALL_S, _SEND_ALL_PAUSES * (now - begun_s)), _ASK_AGAIN_S)

    def _publish(self, *messages: bytes) -> None:
        for message in messages:
            self._carrier.publish(message)
            self._counts["sent"] += 1
            self._counts["sent_bytes"] += len(message)

    def _receive(self, message: bytes, address: str) -> None:
        try:
            origin, sent_us = message_origin(message)
        except CachelbError as error:
            self._refuse(address, error)
            return
        if origin == self.origin:
            return
        self._counts["received"] += 1
        now = time.monotonic()
        peer = self._peer(origin, address, now)
        if peer is None:
            self._refuse(address, f"{_MOST_PEERS} routers are item already, which is the most")
            return
        if sent_us is not None:
            peer.lag.add(sent_us / 1e6, now)
        outcome = self._apply(message)
        if outcome == "gap":
            others = sum(other.kept_bytes for other in self._peers.values()) - peer.kept_bytes
            peer.keep(message, min(self._settings.max_bytes, _ALL_KEPT * self._settings.max_bytes - others))
            self._missed(origin, peer, now)
        elif outcome == "snapshot":
            peer.part_s = now
            self._begin_anew(peer)
        elif outcome == "applied" and peer.part_s is not None and is_part(message):
            peer.part_s = now
        elif outcome == "complete":
            self._snapshot_complete(peer)

    def _peer(self, origin: int, address: str, now: float) -> _Peer | None:
        peer = self._peers.get(origin)
        if peer is None:
            # A new peer at the same address replaces the previous one.
            before = [other for other, at in self._peers.items() if address and at.address == address]
            for other in before:
                self._forget(other)
            if len(self._peers) >= _MOST_PEERS:
                return None
            peer = _Peer(address, now)
            with self._lock:
                self._peers[origin] = peer
        peer.received_s = now
        return peer

    def _apply(self, message: bytes) -> str:
        """Apply a message to the router and return the result."""
        try:
            outcome = self._state.receive(message)
        except CachelbError as error:
            self._refuse("another router", error)
            outcome = "gap"
        if self._settings.share_fleet:
            # Before the next message, which may name new workers.
            for key, failure in self._state.follow():
                _log.warning("worker %s was changed by another router, but not here: %s", key, failure)
        return outcome

    def _refuse(self, address: str, reason: object) -> None:
        """Count a refused message; its sender may send thousands, so few are logged."""
        self._counts["refused"] += 1
        now = time.monotonic()
        if now >= self._warned_s + _WARN_AGAIN_S:
            self._warned_s = now
            _log.warning("a message from %s was refused (%d so far): %s", address, self._counts["refused"], reason)

    def _missed(self, origin: int, peer: _Peer, now: float) -> None:
        if peer.asked_s is None:
            peer.gaps += 1
            self._counts["gaps"] += 1
        if peer.missing_s is None:
            peer.missing_s = now
        if peer.asked_s is None or now >= peer.asked_s + _ASK_AGAIN_S:
            peer.asked_s = now
            self._carrier.ask(origin, peer.address)

    def _ask_again(self, now: float) -> None:
        """Request snapshots that broke off again; numbered entries are still checked for gaps."""
        for origin, peer in self._peers.items():
            if peer.part_s is not None and now >= peer.part_s + _STANDS_STILL_S:
                peer.part_s = now
                self._carrier.ask(origin, peer.address)

    def _begin_anew(self, peer: _Peer) -> None:
        """Continue after a snapshot with the messages kept while it came."""
        peer.asked_s = None
        peer.snapshots += 1
        self._counts["snapshots"] += 1
        kept, peer.kept, peer.kept_bytes = peer.kept, deque(), 0
        for message in kept:
            self._apply(message)

    def _snapshot_complete(self, peer: _Peer) -> None:
        """Mark a peer as complete, unless the kept messages have gaps of their own."""
        peer.part_s = None
        if peer.asked_s is None:
            peer.missing_s = None
        if not self._warm.is_set():
            self._start = "warm: received from another router"
            self._warm.set()

    def _expire(self, now: float) -> None:
        silent_since = now - self._settings.peer_timeout_s
        for origin in [origin for origin, peer in self._peers.items() if peer.received_s < silent_since]:
            self._forget(origin)

    def _forget(self, origin: int) -> None:
        with self._lock:
            self._peers.pop(origin, None)
        self._state.forget(origin)
