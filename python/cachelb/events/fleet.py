"""The event streams of a router's changing set of workers."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Final, TypeAlias

import zmq

from cachelb._core import worker_name
from cachelb.events.discovery import Discovery, Found
from cachelb.events.endpoints import Endpoint, default_endpoint
from cachelb.events.options import FleetSettings
from cachelb.events.sink import KvSink
from cachelb.events.stats import StreamStats, ZmqSourceStats
from cachelb.events.zmq.relayed import RelayEndpoint
from cachelb.events.zmq.relayed_stream import RelayedStream
from cachelb.events.zmq.sockets import Hub
from cachelb.events.zmq.stream import Stream
from cachelb.sources.http import PageError, address_of

Where: TypeAlias = tuple[str, int | None]

_log = logging.getLogger("cachelb.events")

_RETRY_S: Final = 1.0
"""Seconds until opening a stream is retried: another process has the address, perhaps not for long."""

_ASK_AGAIN_S: Final = 2.0
"""Seconds until a disconnected worker is asked for its endpoint again: it may have moved."""


class Fleet:
    """One stream per worker and rank. Lives in the subscriber's thread; `stats` may be called anywhere."""

    def __init__(self, settings: FleetSettings, hub: Hub, sink: KvSink) -> None:
        self._settings = settings
        self._hub = hub
        self._sink = sink
        self._workers: dict[str, int] = {}
        self._streams: dict[Where, Stream] = {}
        self._unopened: dict[Where, float] = {}
        self._unusable: dict[Where, StreamStats] = {}
        self._places: dict[object, Where] = {}
        self._discovery: Discovery | None = None  # from the first question on
        self._ask_s: dict[str, float] = {}
        self._past_messages = self._past_malformed = 0
        self._counting = threading.Lock()  # of past messages and the streams, whose sum never falls
        self._is_lost = False

    def follow(self, now_s: float) -> None:
        """Open streams for new workers and close those of removed ones."""
        workers = self._registered()
        if workers != self._workers:
            before, self._workers = self._workers, workers
            for key, ranks in before.items():
                if workers.get(key) != ranks:
                    self._remove(key)
            for key, ranks in workers.items():
                if before.get(key) != ranks:
                    self._add(key, ranks, now_s)
        self._ask_around(now_s)
        for where, due_s in list(self._unopened.items()):
            if due_s <= now_s:
                self._open(where, now_s)

    def _ask_around(self, now_s: float) -> None:
        """Ask workers for their endpoints, and process earlier answers."""
        if self._discovery is None:
            if not self._ask_s:
                return
            self._discovery = Discovery()
            self._discovery.start()
        for key, found in self._discovery.answers():
            if key in self._ask_s:
                self._on_answer(key, found, now_s)
        for key, due_s in self._ask_s.items():
            if due_s <= now_s and not self._is_connected(key):
                self._ask_s[key] = now_s + _ASK_AGAIN_S
                with contextlib.suppress(KeyError):  # removed a moment ago
                    self._discovery.ask(key, address_of(self._sink, key))

    def settle(self, now_s: float) -> float | None:
        """Time out what waits too long; return when there is more to do, None for never."""
        next_s: float | None = None
        for where, stream in self._streams.items():
            if stream.deadline_s is not None and stream.deadline_s <= now_s:
                stream.on_time()
            if stream.is_given_up and where not in self._unopened:
                self._put_off(where, now_s, stream.last_error or "", "closed for now")
            if stream.deadline_s is not None and (next_s is None or stream.deadline_s < next_s):
                next_s = stream.deadline_s
        return next_s

    def close(self) -> None:
        """Close every stream."""
        if self._discovery is not None:
            self._discovery.stop()
        for stream in self._streams.values():
            stream.close()

    def endpoint_of(self, where: Where) -> Endpoint | RelayEndpoint | None:
        """Return where a stream is, None if there is no such stream."""
        stream = self._streams.get(where)
        return None if stream is None else stream.endpoint

    def stats(self) -> ZmqSourceStats:
        """Return the counters."""
        with self._counting:
            streams = {where: stream.stats() for where, stream in list(self._streams.items())}
            messages, malformed = self._past_messages, self._past_malformed
        return ZmqSourceStats(
            messages=messages + sum(stream.messages for stream in streams.values()),
            malformed=malformed + sum(stream.malformed for stream in streams.values()),
            streams={**self._unusable, **streams},
        )

    def _registered(self) -> dict[str, int]:
        """Return the router's workers, or the last known ones if that fails."""
        try:
            workers = dict(self._sink.event_sink.ranks())
        except Exception:  # noqa: BLE001 - logged; a failing router must not end receiving
            if not self._is_lost:
                _log.exception("the router does not name its workers; receiving goes on with the ones known")
            self._is_lost = True
            return self._workers
        self._is_lost = False
        return workers

    def _add(self, key: str, ranks: int, now_s: float) -> None:
        """Make the streams of a worker, or ask it for its endpoint."""
        if self._settings.asks(key):
            self._ask_s[key] = now_s
            return
        try:
            endpoint = self._settings.endpoint(key)
        except Exception as error:  # noqa: BLE001 - the function is the user's; other workers are still followed
            reason = str(error) if isinstance(error, ValueError | TypeError) else type(error).__name__
            self._refuse((key, None), "no endpoint", reason)
        else:
            if endpoint is not None:
                self._place(key, ranks, endpoint, now_s)

    def _place(self, key: str, ranks: int, endpoint: Endpoint | RelayEndpoint, now_s: float) -> None:
        """Make the streams of a worker's ranks, at consecutive ports from an endpoint on."""
        for rank in range(ranks):
            where = (key, None if ranks == 1 else rank)
            try:
                of_rank = endpoint.of_rank(rank)
            except ValueError as error:
                self._refuse(where, "no endpoint", str(error))
                continue
            self._make(where, of_rank, now_s)

    def _make(self, where: Where, endpoint: Endpoint | RelayEndpoint, now_s: float) -> None:
        """Make one stream."""
        kind = RelayedStream if isinstance(endpoint, RelayEndpoint) else Stream
        self._streams[where] = kind(
            where, endpoint, self._settings, hub=self._hub, sink=self._sink, shown=_shown(where)
        )
        self._open(where, now_s)

    def _is_connected(self, key: str) -> bool:
        """Return whether a worker's streams are at its reported endpoints."""
        own = [stream for (owner, _), stream in self._streams.items() if owner == key]
        return bool(own) and all(stream.is_connected for stream in own)

    def _on_answer(self, key: str, found: Found, now_s: float) -> None:
        """Make the streams of a worker at its reported endpoints, or without a report at the default ports."""
        ranks = self._workers[key]
        if isinstance(found, PageError) and str(found) == "HTTP 404":
            del self._ask_s[key]
            self._unusable.pop((key, None), None)
            settings = self._settings
            self._place(key, ranks, default_endpoint(key, settings.default_port, settings.replay_port), now_s)
            return
        if isinstance(found, Exception):
            if not any(owner == key for owner, _ in self._streams):
                reason = str(found) if isinstance(found, PageError | ValueError) else type(found).__name__
                self._refuse((key, None), "unknown address", f"it does not report its address: {reason}")
            return
        self._unusable.pop((key, None), None)
        for rank in range(ranks):
            where = (key, None if ranks == 1 else rank)
            endpoint = found.get(rank)
            known = self._streams.get(where)
            if known is not None and known.endpoint == endpoint:
                continue
            if known is not None:
                self._end(where)
            if endpoint is None:
                self._refuse(where, "no endpoint", "it names none that it listens at; use endpoints=")
            else:
                self._unusable.pop(where, None)
                self._make(where, endpoint, now_s)

    def _open(self, where: Where, now_s: float) -> None:
        """Open a stream, now or later. Two workers at one address are refused: they would share their blocks."""
        stream = self._streams[where]
        holder = self._places.setdefault(stream.place, where)
        if holder != where:
            self._put_off(where, now_s, "address taken", f"{_shown(holder)} is there already; give each its endpoint")
            return
        try:
            stream.open()
        except zmq.ZMQError as error:
            del self._places[stream.place]
            self._put_off(where, now_s, "not opened", str(error))
            return
        if self._unopened.pop(where, None) is not None:
            _log.info("the event stream of %s at %s is open", _shown(where), stream.endpoint.address)

    def _put_off(self, where: Where, now_s: float, kind: str, detail: str) -> None:
        stream = self._streams[where]
        if where not in self._unopened:
            _log.error("no event stream of %s at %s: %s", _shown(where), stream.endpoint.address, detail)
        stream.last_error = kind
        self._unopened[where] = now_s + _RETRY_S

    def _refuse(self, where: Where, kind: str, detail: str) -> None:
        if where not in self._unusable:
            _log.error("no event stream of %s: %s", _shown(where), detail)
        self._unusable[where] = StreamStats(state="unusable", last_error=kind)

    def _remove(self, key: str) -> None:
        """Close the streams of a worker."""
        self._ask_s.pop(key, None)
        for where in [where for where in self._streams if where[0] == key]:
            self._end(where)
        self._unusable = {where: stats for where, stats in self._unusable.items() if where[0] != key}

    def _end(self, where: Where) -> None:
        """Close one stream."""
        with self._counting:
            stream = self._streams.pop(where)
            gone = stream.stats()
            self._past_messages += gone.messages
            self._past_malformed += gone.malformed
        stream.close()
        self._unopened.pop(where, None)
        if self._places.get(stream.place) == where:
            del self._places[stream.place]


def _shown(where: Where) -> str:
    key, rank = where
    shown = worker_name(key)
    return shown if rank is None else f"{shown} rank {rank}"
