"""Engines that flood: what the process holds of them is bounded, and what is given up is counted."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Self

import pytest
import zmq
from tests.hostile.strangers import resident_mb
from tests.models.kv_sink import RecordingSink
from tests.models.kv_streams import W, connected, publish, receiving
from tests.ports import free_ports
from tests.waiting import wait_until

from cachelb.events import Endpoint, ZmqSource
from cachelb.events.stats import StreamStats
from cachelb.events.zmq.sockets import EVENT_BYTES, REPLAY_MESSAGES
from cachelb_fakes import EventPublisher

_PAYLOAD = bytes(1 << 20)


class FloodingEngine:
    """Answers a replay, or a subscription, with as much as fits into the connection."""

    def __init__(self, flood: str, frames: Callable[[int], list[bytes]]) -> None:
        self.sent = 0
        self._flood, self._frames = flood, frames
        live, replay = free_ports(2)
        self.endpoint = Endpoint(f"tcp://127.0.0.1:{live}", replay=f"tcp://127.0.0.1:{replay}")
        self._ended = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        with zmq.Context() as context, context.socket(zmq.PUB) as live, context.socket(zmq.ROUTER) as replay:
            for socket, address in ((live, self.endpoint.address), (replay, self.endpoint.replay)):
                socket.linger, socket.sndhwm = 0, 4
                assert address is not None
                socket.bind(address)
            replay.router_mandatory, replay.sndtimeo = True, 100
            self._ready.set()
            asker = None
            while not self._ended.is_set():
                if replay.poll(0 if asker else 10):
                    asker = replay.recv_multipart()[0]
                if self._flood == "live":
                    live.send_multipart(self._frames(self.sent))
                    self.sent += 1
                elif asker is not None:
                    with contextlib.suppress(zmq.ZMQError):
                        replay.send_multipart([asker, *self._frames(self.sent)])
                        self.sent += 1


def stream_of(source: ZmqSource) -> StreamStats:
    """The only stream; it has done nothing before the source's thread has made it."""
    return source.stats().streams.get((W, None), StreamStats(state="connecting"))


def numbered(seq: int) -> bytes:
    return seq.to_bytes(8, "big")


def test_what_is_kept_of_a_replay_is_bounded() -> None:
    """While nothing is read the rest stays with the engine: without a high-water mark all of it came here."""
    busy, go_on = threading.Event(), threading.Event()

    class Busy(RecordingSink):
        def replayed(self, key: str, dp_rank: int | None, seq: int, payload: bytes) -> int:
            busy.set()
            assert go_on.wait(600)
            return super().replayed(key, dp_rank, seq, b"")

    with (
        FloodingEngine("replay", lambda sent: [b"", numbered(sent), _PAYLOAD]) as engine,
        receiving(Busy({W: 1}), {W: engine.endpoint}, replay_timeout_s=600.0) as source,
    ):
        try:
            assert busy.wait(30)
            before, sent, most = resident_mb(), engine.sent, REPLAY_MESSAGES + 200
            wait_until(lambda: engine.sent - sent > most or _is_still(engine))
            assert engine.sent - sent <= most
            assert resident_mb() < before + 200
        finally:
            go_on.set()
        assert source.stats().streams[W, None].malformed == 0


def _is_still(engine: FloodingEngine) -> bool:
    sent = engine.sent
    threading.Event().wait(1.0)
    return engine.sent == sent


def test_a_replay_without_end_is_given_up_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cachelb.events.zmq.replay.MOST_REPLAYED_BYTES", 8 << 20)
    with (
        FloodingEngine("replay", lambda sent: [b"", numbered(sent), _PAYLOAD[: 1 << 16]]) as engine,
        receiving(RecordingSink({W: 1}), {W: engine.endpoint}, replay_timeout_s=600.0) as source,
    ):
        wait_until(lambda: stream_of(source).replays_failed > 0)
        assert stream_of(source).last_error == "no replay"


@pytest.mark.parametrize("flood", ["live", "replay"])
def test_a_message_that_is_too_long_never_arrives(flood: str) -> None:
    long = bytes(EVENT_BYTES + 1)
    frames = [b"", numbered(0), long]
    sink = RecordingSink({W: 1})
    with (
        FloodingEngine(flood, lambda _: frames) as engine,
        receiving(sink, {W: engine.endpoint}, replay_timeout_s=1.0) as source,
    ):
        if flood == "live":
            wait_until(lambda: stream_of(source).connections > 1)
        else:
            wait_until(lambda: stream_of(source).replays_failed > 0)
        assert source.stats().messages == 0
        assert sink.of(W).applied == []


def test_a_stream_that_floods_is_closed_and_opened_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cachelb.events.fleet._RETRY_S", 0.05)
    with EventPublisher() as publisher, connected(publisher, replay_timeout_s=600.0) as (sink, source):
        monkeypatch.setattr("cachelb.events.zmq.stream._MOST_BYTES_AT_ONCE", 1 << 20)
        publisher.publish_frames(b"", numbered(0), bytes(2 << 20))
        wait_until(lambda: source.stats().streams[W, None].last_error == "flooded")
        assert source.stats().malformed == 1
        wait_until(lambda: source.stats().streams[W, None].connections == 2)
        publish(publisher, 0)
        sink.wait_for(lambda: 0 in sink.of(W).applied)
