"""The thread that receives the events of all workers."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from typing import Final, Protocol

from cachelb.events.fleet import Fleet
from cachelb.events.options import FleetSettings
from cachelb.events.sink import KvSink
from cachelb.events.stats import ZmqSourceStats
from cachelb.events.zmq.sockets import Hub

_log = logging.getLogger("cachelb.events")

_FOLLOW_S: Final = 0.1
"""Seconds between two reads of the router's workers."""

_JOIN_S: Final = 5.0
"""Seconds that `stop` waits for the thread. Only a call of the router can block it longer."""


class Service(Protocol):
    """A further task of the thread."""

    def open(self, hub: Hub, fleet: Fleet) -> None:
        """Make its sockets; they are closed with the others."""
        ...

    def settle(self, now_s: float) -> float | None:
        """Do due work and return the next deadline; called a few times per second at least."""
        ...


class Subscriber:
    """One run of the source's thread, from start to stop."""

    def __init__(
        self, settings: FleetSettings, sink: KvSink, *, service: Service | None = None, name: str = "cachelb-kv-events"
    ) -> None:
        self.pid = os.getpid()
        self._waker, self._woken = socket.socketpair()
        self._hub = Hub(self._woken.fileno())
        self._fleet = Fleet(settings, self._hub, sink)
        self._service = service
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        if service is not None:
            try:
                service.open(self._hub, self._fleet)
            except BaseException:
                self._end()
                raise

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, which closes its sockets, and wait for it."""
        self._stopping = True
        with contextlib.suppress(OSError):  # the thread has ended by itself
            self._waker.send(b"\0")
        if threading.current_thread() is self._thread:  # in a finalizer, which may run in any thread
            return
        self._thread.join(_JOIN_S)
        if self._thread.is_alive():
            _log.warning("the event thread is blocked in a call of the router and ends once the call returns")

    def stats(self) -> ZmqSourceStats:
        """Return the counters."""
        return self._fleet.stats()

    def _work(self) -> None:
        try:
            self._receive()
        except Exception:  # noqa: BLE001 - logged; the router must not wait for a dead thread
            _log.exception("receiving events has ended")
        finally:
            self._end()

    def _end(self) -> None:
        self._fleet.close()
        self._hub.end()
        self._waker.close()
        self._woken.close()

    def _receive(self) -> None:
        """Receive until stopped."""
        follow_s = time.monotonic()
        while not self._stopping:
            now_s = time.monotonic()
            if now_s >= follow_s:
                self._fleet.follow(now_s)
                follow_s = now_s + _FOLLOW_S
            due_s = self._fleet.settle(now_s)
            service_s = None if self._service is None else self._service.settle(now_s)
            wake_s = min(due for due in (follow_s, due_s, service_s) if due is not None)
            for owner in self._hub.wait(wake_s - time.monotonic()):
                owner.on_readable()
