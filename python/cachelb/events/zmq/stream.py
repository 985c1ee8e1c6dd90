"""The event stream of one worker, or of one rank of it."""

from __future__ import annotations

import logging
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Final

import zmq
from zmq.utils.monitor import parse_monitor_message

from cachelb.errors import UnknownWorkerError
from cachelb.events.stats import StreamState, StreamStats
from cachelb.events.zmq.frames import split_live
from cachelb.events.zmq.replay import MOST_REPLAYED_BYTES, Progress, Replay
from cachelb.events.zmq.sockets import received

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cachelb.events.endpoints import Endpoint
    from cachelb.events.options import FleetSettings
    from cachelb.events.sink import KvSink
    from cachelb.events.zmq.relayed import RelayEndpoint
    from cachelb.events.zmq.sockets import Hub, Keys

_log = logging.getLogger("cachelb.events")

_MESSAGES_PER_TURN: Final = 128
"""Messages read from one stream before the others have their turn."""

_CUT_OFF_S: Final = 1.0
"""Seconds after which a lost connection that ZeroMQ does not retry is reopened."""

_MOST_BYTES_AT_ONCE: Final = 128 << 20
"""Bytes that may arrive between two turns: the events of 20 million tokens."""


@dataclass(eq=False, repr=False)
class Stream:
    """Receives one stream for the sink. Lives in the subscriber's thread; `stats` may be read anywhere."""

    where: tuple[str, int | None]
    endpoint: Endpoint | RelayEndpoint
    settings: FleetSettings
    _: KW_ONLY
    hub: Hub
    sink: KvSink
    shown: str

    def __post_init__(self) -> None:
        """Make no socket yet."""
        self._key, self._rank = self.where
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._replay: Replay | None = None
        self.is_connected = False
        self._unreachable = False
        self._replay_failing = False
        self._counts: Counter[str] = Counter()  # by the names of `StreamStats`
        self.last_error: str | None = None
        self.is_given_up = False
        self._cut_off_s: float | None = None

    # --- life ---

    def open(self) -> None:
        """Make the sockets and begin to listen or to connect."""
        hub, settings = self.hub, self.settings
        self.is_given_up = False
        self._socket, self._monitor = hub.subscriber(self, self._wanted(), settings.rcvhwm, self._keys())
        try:
            if self.endpoint.bind:
                self._socket.bind(self.endpoint.address)
            else:
                self._socket.connect(self.endpoint.address)
        except zmq.ZMQError:
            self._close_sockets()
            raise

    def close(self) -> None:
        """Close the sockets. Idempotent."""
        if self.is_connected:
            self._on_disconnected()
        self._close_sockets()

    def stats(self) -> StreamStats:
        """Return the counters."""
        return StreamStats(
            state=self._state(),
            address=self.endpoint.address,
            last_error=self.last_error,
            **self._counts,
        )

    @property
    def deadline_s(self) -> float | None:
        """When to call `on_time` next, None for never."""
        if self._cut_off_s is not None:
            return self._cut_off_s
        return None if self._replay is None else self._replay.deadline_s

    # --- events of the loop ---

    def on_readable(self) -> None:
        """Read from every socket, the monitor of connections first."""
        self._read_monitor()
        self._read_live(_MESSAGES_PER_TURN)
        self._settle(lambda replay: replay.receive(self._on_replayed, time.monotonic()))

    def on_time(self) -> None:
        """Time out a stalled replay; messages that came meanwhile count, however late this thread is."""
        self.on_readable()
        self._settle(lambda replay: replay.check(time.monotonic()))
        if self._cut_off_s is not None and time.monotonic() >= self._cut_off_s:
            self._give_up("cut off")

    def _read_monitor(self) -> None:
        if self._monitor is None:
            return
        for frames in received(self._monitor, _MESSAGES_PER_TURN):
            event = parse_monitor_message(frames)["event"]
            # ZeroMQ never retries a peer that broke its rules, such as the length of a message.
            lost = event == zmq.EVENT_DISCONNECTED and not self.endpoint.bind
            self._cut_off_s = time.monotonic() + _CUT_OFF_S if lost else None
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._on_reached()
            elif event == zmq.EVENT_DISCONNECTED:
                self._read_live(max(self.settings.rcvhwm, _MESSAGES_PER_TURN))  # these were sent before the end
                if self.is_given_up:
                    return
                if self.is_connected:
                    _log.warning("the event stream of %s is interrupted", self.shown)
                    self._on_disconnected()
            elif not self.is_connected:
                self._on_unreachable("not reachable" if event == zmq.EVENT_CONNECT_RETRIED else "no ZeroMQ there")

    def _read_live(self, limit: int) -> None:
        if self._socket is None:
            return
        # Before any is decoded: messages that arrive meanwhile are kept.
        found, size = [], 0
        for frames in received(self._socket, limit):
            found.append(frames)
            size += sum(map(len, frames))
            if size > _MOST_BYTES_AT_ONCE:
                self._on_flood()
                return
        for frames in found:
            self._on_frames(frames)

    def _on_flood(self) -> None:
        self._counts["messages"] += 1
        self._counts["malformed"] += 1
        _log.error("%s publishes more than %d MB at once", self.shown, _MOST_BYTES_AT_ONCE >> 20)
        self._give_up("flooded")

    def _give_up(self, why: str) -> None:
        """Close the sockets, which frees what they hold; the fleet opens them again later."""
        self.close()
        self.last_error = why
        self._cut_off_s = None
        self.is_given_up = True

    # --- overridden behind a relay ---

    @property
    def place(self) -> object:
        """The key that no two streams may share."""
        return self.endpoint.address

    def _wanted(self) -> bytes | None:
        """Return the topic prefix, None for a stream that must be requested."""
        return self.settings.topic_filter.encode()

    def _keys(self) -> Keys | None:
        """Return the CURVE keys of the server."""
        return None

    def _replayable(self) -> bool:
        """Return whether the engine can replay."""
        return self.endpoint.replay is not None

    def _through(self) -> tuple[bytes, ...]:
        """Return the leading frames of a request to the engine."""
        return ()

    def _on_reached(self) -> None:
        """Process a connection to the address."""
        self._on_connected()

    def _on_frames(self, frames: list[bytes]) -> None:
        """Process a message."""
        self._counts["messages"] += 1
        message = split_live(frames)
        if message is None:
            self._fail_frames()
            return
        if not self.is_connected:  # bound sockets have many peers, of which one may be gone
            self._on_connected()
        self._on_live(*message)

    # --- calls of the sink ---

    def _on_connected(self) -> None:
        self.is_connected = True
        self._unreachable = False
        self._counts["connections"] += 1
        _log.info("the event stream of %s is connected", self.shown)
        if self._socket is not None:
            self._socket.get(zmq.EVENTS)  # sends the subscription, which must precede the replay request
        self._catch_up()

    def _catch_up(self) -> None:
        """Request messages that may have been missed."""
        with self._refusing():
            self._start_replay(self.sink.event_sink.connected(self._key, self._rank, self._replayable()))

    def _on_disconnected(self) -> None:
        self.is_connected = False
        self._end_replay()
        with self._refusing():
            self.sink.event_sink.disconnected(self._key, self._rank)

    def _on_live(self, seq: int | None, payload: bytes) -> None:
        with self._refusing():
            _, start = self.sink.event_sink.live(self._key, self._rank, seq, payload)
            self._start_replay(start)

    def _on_replayed(self, seq: int, payload: bytes) -> None:
        with self._refusing():
            self.sink.event_sink.replayed(self._key, self._rank, seq, payload)

    def _on_replay_ended(self, *, complete: bool) -> int | None:
        """Report the end of the replay; return the start of the next one, None if the router refuses."""
        with self._refusing():
            return self.sink.event_sink.replay_ended(self._key, self._rank, complete)

    # --- replay ---

    def _start_replay(self, start: int | None) -> None:
        """Request missing messages; the newest request replaces earlier ones, as it knows most."""
        if start is None:
            return
        self._end_replay()
        address = self.endpoint.replay
        if address is None or not self._replayable():
            self._on_replay_ended(complete=False)
            return
        self._counts["replays"] += 1
        try:
            self._replay = Replay(
                lambda: self.hub.dealer(self, address, self._keys()),
                self.hub.close,
                start,
                timeout_s=self.settings.replay_timeout_s,
                now_s=time.monotonic(),
                through=self._through(),
            )
        except zmq.ZMQError as error:
            self._on_replay_failed(str(error))

    def _settle(self, step: Callable[[Replay], Progress]) -> None:
        """Advance the replay, and finish it at its end."""
        replay = self._replay
        if replay is None:
            return
        try:
            progress = step(replay)
        except zmq.ZMQError as error:
            self._on_replay_failed(str(error))
            return
        if progress is Progress.FAILED:
            self._start_replay(self._on_replay_failed(f"no answer within {self.settings.replay_timeout_s:g} s"))
        elif progress is Progress.FLOODED:
            self._start_replay(self._on_replay_failed(f"it sends more than {MOST_REPLAYED_BYTES >> 20} MB"))
        elif progress is Progress.COMPLETE:
            self._end_replay()
            self._replay_failing = False
            self._start_replay(self._on_replay_ended(complete=True))

    def _on_replay_failed(self, why: str) -> int | None:
        self._end_replay()
        self._counts["replays_failed"] += 1
        self.last_error = "no replay"
        if not self._replay_failing:
            _log.warning("%s does not replay its events at %s: %s", self.shown, self.endpoint.replay, why)
        self._replay_failing = True
        return self._on_replay_ended(complete=False)

    def _end_replay(self) -> None:
        replay, self._replay = self._replay, None
        if replay is not None:
            self._counts["malformed"] += replay.malformed
            replay.end()

    # --- the rest ---

    def _close_sockets(self) -> None:
        self._end_replay()
        socket, monitor = self._socket, self._monitor
        self._socket = self._monitor = None
        if socket is not None and monitor is not None:
            socket.disable_monitor()
            self.hub.close(monitor, socket)

    def _state(self) -> StreamState:
        if self._socket is None:
            return "unusable"
        if self.is_connected:
            return "live" if self._replay is None else "replaying"
        return "disconnected" if self._counts["connections"] else "connecting"

    def _on_unreachable(self, why: str) -> None:
        """Log once that there is no connection; it is retried all the time."""
        if not self._unreachable:
            _log.warning("the event stream of %s at %s: %s", self.shown, self.endpoint.address, why)
        self._unreachable = True
        self.last_error = why

    def _fail_frames(self) -> None:
        self._counts["malformed"] += 1
        self.last_error = "malformed message"
        if self._counts["malformed"] == 1:
            _log.warning("the event stream of %s carries messages that are not in the format of an engine", self.shown)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Count a message that the router refuses, unless its worker was just removed."""
        try:
            yield
        except UnknownWorkerError:
            pass
        except Exception as error:  # noqa: BLE001 - logged; other workers must not be affected
            self._counts["refused"] += 1
            self.last_error = type(error).__name__
            if self._counts["refused"] == 1:
                _log.exception("the router fails on the event stream of %s", self.shown)
