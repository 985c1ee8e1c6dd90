"""Gateways behind a relay receive the events that they would receive from the engines themselves."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from typing import Any

import pytest
import zmq
from tests.library.router.test_router_fork import in_child
from tests.models.kv_sink import RecordingSink
from tests.models.kv_streams import W, behind, last_error, nothing_left, publish, receiving, relayed
from tests.waiting import wait_until

from cachelb.events import ZmqSource
from cachelb.events.zmq import sockets
from cachelb_fakes import EventPublisher
from cachelb_fakes.events import stored
from cachelb_gateway.relay import Relay


def state(source: ZmqSource) -> str:
    return source.stats().streams[W, None].state


# --- as if connected to the engine ---


@pytest.mark.parametrize("replay_topic", [True, False], ids=["four frames", "three frames"])
def test_a_late_gateway_gets_the_history_and_then_what_is_new(*, replay_topic: bool) -> None:
    with EventPublisher(replay_topic=replay_topic, topic="kv-events@w0@m") as publisher:
        publish(publisher, 0, 1, 2)
        with relayed(publisher) as (relay, sink, source):
            publish(publisher, 3, 4)
            sink.wait_applied([0, 1, 2, 3, 4], W)
            assert (sink.of(W).asked, sink.of(W).duplicates) == ([0], 0)
            assert state(source) == "live"
            late = RecordingSink({W: 1})
            with behind(relay, late):
                late.wait_applied([0, 1, 2, 3, 4], W)
                publish(publisher, 5)
                for each in (sink, late):
                    each.wait_applied([0, 1, 2, 3, 4, 5], W)
            assert publisher.subscribers == 1, "an engine has one subscriber, however many gateways there are"
            assert sink.of(W).told == ["connected True", "ended True"], "who is there already hears nothing of others"
            assert publisher.replay_requests == [0, 0]


# --- the relay itself ---


def test_a_relay_that_comes_back_is_found_and_what_was_missed_is_asked_for() -> None:
    with EventPublisher() as publisher:
        options: dict[str, Any] = {"workers": [W], "endpoints": {W: publisher.endpoint}}
        relay = Relay("tcp://127.0.0.1:*", **options)
        relay.start()
        address = relay.address
        sinks = [RecordingSink({W: 1}) for _ in range(2)]
        with behind(relay, *sinks) as sources:
            publish(publisher, 0, 1)
            for sink in sinks:
                sink.wait_applied([0, 1], W)
            relay.stop()
            for sink in sinks:
                sink.wait_for(lambda sink=sink: not sink.of(W).connected)  # type: ignore[misc]
            publish(publisher, 2, 3)
            with Relay(address, **options):
                publish(publisher, 4)
                for sink in sinks:
                    sink.wait_applied([0, 1, 2, 3, 4], W)
                assert {source.stats().streams[W, None].connections for source in sources} == {2}
            publisher.restart()
            publish(publisher, 10)
            with Relay(address, **options):
                for sink in sinks:
                    sink.wait_applied([0, 1, 2, 3, 4, "clear", 10], W)


def test_workers_come_and_go_at_the_relay() -> None:
    with EventPublisher() as one, EventPublisher() as two:
        endpoints = {"one": one.endpoint, "two": two.endpoint}
        with Relay("tcp://127.0.0.1:*", endpoints=endpoints) as relay:
            sink = RecordingSink({"one": 1, "two": 1})
            with behind(relay, sink) as (source,):
                for key in endpoints:
                    wait_until(lambda key=key: last_error(source, key) == "not known at the relay")  # type: ignore[misc]
                publish(one, 0)
                relay.add_worker("one")
                sink.wait_applied([0], "one")
                relay.sync_workers(["one", "two"])
                publish(two, 7)
                sink.wait_applied([7], "two")
                relay.remove_worker("one")
                sink.wait_for(lambda: not sink.of("one").connected)
                one.wait_for(lambda: one.subscribers == 0)
                publish(two, 8)
                sink.wait_applied([7, 8], "two")
                relay.add_worker("one")
                publish(one, 1)
                sink.wait_applied([0, 1], "one")
                assert sink.of("two").told.count("disconnected") == 0


class Busy(RecordingSink):
    """Takes nothing from the batch with number 0 on, until it may."""

    def __init__(self) -> None:
        super().__init__({W: 1})
        self.begun, self.go_on = threading.Event(), threading.Event()

    def live(self, key: str, dp_rank: int | None, seq: int | None, payload: bytes) -> tuple[int, int | None]:
        self._wait(seq)
        return super().live(key, dp_rank, seq, payload)

    def replayed(self, key: str, dp_rank: int | None, seq: int, payload: bytes) -> int:
        self._wait(seq)
        return super().replayed(key, dp_rank, seq, payload)

    def _wait(self, seq: int | None) -> None:
        if seq == 0:
            self.begun.set()
            assert self.go_on.wait(600)


def large(name: int) -> dict[str, Any]:
    return stored([name], range(16), lora_name="x" * 20_000)


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let connections hold some kilobytes, not megabytes."""
    options = {**sockets._OPTIONS, zmq.SNDBUF: 4096, zmq.RCVBUF: 4096}
    monkeypatch.setattr(sockets, "_OPTIONS", options)


@pytest.mark.usefixtures("small_buffers")
@pytest.mark.parametrize("then", ["one more", "silence"])
def test_a_gateway_that_does_not_read_loses_messages_that_others_get_and_asks_for_them(then: str) -> None:
    # So much is kept that the other gateway, which reads, never loses any.
    options: dict[str, Any] = {"workers": [W], "hwm": 50}
    with (
        EventPublisher() as publisher,
        Relay("tcp://127.0.0.1:*", endpoints={W: publisher.endpoint}, **options) as relay,
    ):
        slow, other = Busy(), RecordingSink({W: 1})
        with behind(relay, slow, rcvhwm=5), behind(relay, other):
            for sink in (slow, other):
                sink.wait_for(lambda sink=sink: "ended True" in sink.of(W).told)  # type: ignore[misc]
            names = 0
            try:
                while relay.stats().dropped < 3:
                    publisher.publish(large(names))
                    names += 1
                    other.wait_applied(list(range(names)), W)
                    assert slow.begun.wait(30)
            finally:
                slow.go_on.set()
            if then == "one more":
                slow.wait_for(lambda: slow.of(W).last > 0)
                publisher.publish(stored([names], range(16)))
                names += 1
            slow.wait_applied(list(range(names)), W)
            assert len(slow.of(W).asked) > 1, "it missed some"
            assert "disconnected" not in slow.of(W).told
            other.wait_applied(list(range(names)), W)
            assert other.of(W).asked == [0], "the other one did not"


@pytest.mark.usefixtures("small_buffers")
def test_an_answer_waits_at_the_engine_while_the_gateway_does_not_read() -> None:
    with (
        EventPublisher() as publisher,
        Relay("tcp://127.0.0.1:*", workers=[W], endpoints={W: publisher.endpoint}) as relay,
    ):
        for name in range(300):
            publisher.publish(large(name))
        slow = Busy()
        with behind(relay, slow, replay_timeout_s=600.0):
            assert slow.begun.wait(30)
            assert relay._service is not None
            passages = relay._service._passages
            try:
                wait_until(lambda: any(passage.kept is not None for passage in list(passages._open.values())))
            finally:
                slow.go_on.set()
            slow.wait_applied(list(range(300)), W)
            slow.wait_for(lambda: slow.of(W).told == ["connected True", "ended True"])
            assert publisher.replay_requests == [0], "nothing was lost on the way"
            wait_until(lambda: not passages._open)


def test_requests_of_strangers_are_counted_and_do_no_harm() -> None:
    with EventPublisher() as publisher, relayed(publisher) as (relay, sink, _), zmq.Context() as context:
        with context.socket(zmq.DEALER) as dealer, context.socket(zmq.SUB) as subscriber:
            host, _, port = relay.address.rpartition(":")
            dealer.linger = subscriber.linger = 0
            dealer.connect(f"{host}:{int(port) + 1}")
            subscriber.connect(relay.address)
            subscriber.subscribe(b"\xff\xff")
            for frames in ([b""], [b"", b"1"], [b"nobody", b"", bytes(8)], [b"a"] * 9):
                dealer.send_multipart(frames)
            wait_until(lambda: relay.stats().refused == 4)
        publish(publisher, 0)
        sink.wait_applied([0], W)


_V3 = b"\xff" + bytes(8) + b"\x7f\x03"


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        _V3[:10],
        _V3 + b"\x00NULL" + bytes(16 + 32),  # and no READY
        b"GET / HTTP/1.1\r\nHost: relay\r\n\r\n",  # as of ZMTP 1: 70 more bytes are to come
        b"\x01\x00",  # ZMTP 1
        b"\xff" + bytes(8) + b"\x7f\x01\x05\x00\x00",  # ZMTP 2
    ],
    ids=["nothing", "part", "no handshake", "HTTP", "ZMTP 1", "ZMTP 2"],
)
@pytest.mark.parametrize("secret", [None, "s" * 16], ids=["open", "secret"])
def test_connections_that_do_not_greet_as_peers_do_end(
    sent: bytes, secret: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "_OPTIONS", {**sockets._OPTIONS, zmq.HANDSHAKE_IVL: 300})
    with Relay("tcp://127.0.0.1:*", secret=secret) as relay:
        host, _, port = relay.address.removeprefix("tcp://").rpartition(":")
        for number in (int(port), int(port) + 1):
            with socket.create_connection((host, number), timeout=60) as connection:
                connection.sendall(sent)
                with contextlib.suppress(ConnectionError):
                    while connection.recv(1000):
                        pass


def test_an_address_in_use_is_an_error_and_leaves_nothing() -> None:
    with Relay("tcp://127.0.0.1:*") as relay, nothing_left():
        with pytest.raises(OSError, match="cannot publish at tcp://127"):
            Relay(relay.address).start()
        with pytest.raises(RuntimeError, match="runs already"):
            relay.start()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_relay_stays_with_the_parent_of_a_fork() -> None:
    with EventPublisher() as publisher, relayed(publisher) as (relay, sink, _):

        def child() -> None:
            relay.start()
            assert (relay.stats().streams, relay.address) == ({}, "")

        in_child(child)
        publish(publisher, 0)
        sink.wait_applied([0], W)


def test_wrong_arguments_are_named() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"bind": "ipc:///x"}, "bind must be an address like"),
        ({"bind": 7800}, "bind must be text, got int"),
        ({"bind": "tcp://127.0.0.1:65535"}, "bind must be an address like"),
        ({"workers": W}, "workers must be a sequence of keys or a mapping"),
        ({"workers": [7]}, "a worker must be a key, got int"),
        ({"workers": {W: 0}}, "must be at least 1, got 0"),
        ({"hwm": 0}, "hwm must be at least 1, got 0"),
        ({"endpoints": {W: "x"}}, "must be an Endpoint, got str"),
    ]
    for options, message in wrong:
        with pytest.raises((TypeError, ValueError), match=message):
            Relay(**{"bind": "tcp://127.0.0.1:*", **options})
    beside: list[tuple[dict[str, Any], str]] = [
        ({"discover": True}, "discover is of no use beside relay"),
        ({"replay_port": 5657}, "replay_port is of no use beside relay"),
        ({"topic_filter": "kv"}, "topic_filter is of no use beside relay"),
        ({"endpoints": lambda _: None}, "relay is of no use beside a function"),
    ]
    for options, message in beside:
        with pytest.raises(ValueError, match=message):
            ZmqSource(relay="tcp://relay:7800", **options)
    with pytest.raises(TypeError, match="relay must be an address like"):
        ZmqSource(relay=7800)  # type: ignore[arg-type]


def test_workers_that_are_named_publish_for_themselves() -> None:
    with (
        EventPublisher() as publisher,
        EventPublisher() as direct,
        Relay("tcp://127.0.0.1:*", workers=[W], endpoints={W: publisher.endpoint}) as relay,
    ):
        sink = RecordingSink({W: 1, "direct": 1})
        with receiving(sink, {"direct": direct.endpoint}, relay=relay.address):
            publish(publisher, 1)
            publish(direct, 2)
            sink.wait_applied([1], W)
            sink.wait_applied([2], "direct")


def test_a_stream_that_is_interrupted_at_the_relay_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), EventPublisher() as publisher, relayed(publisher) as (_, sink, _):
        sink.wait_for(lambda: sink.of(W).connected)
        caplog.clear()  # the relay itself may have been late
        publisher.stop()
        sink.wait_for(lambda: not sink.of(W).connected)
        publisher.start()
        sink.wait_for(lambda: sink.of(W).connected)
    assert sum("not connected at the relay" in record.message for record in caplog.records) == 1
