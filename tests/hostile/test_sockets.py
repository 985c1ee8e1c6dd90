"""No socket of this package lets a peer make the process hold more than its limits."""

from __future__ import annotations

import ast
import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from tests.hostile.strangers import (
    is_ended,
    place,
    resident_mb,
    silent_connections,
    subscribe_often,
)
from tests.library.state.transports import MeshFleet, make_router, routers
from tests.models import kv_streams
from tests.models.kv_sink import RecordingSink
from tests.models.kv_streams import W, publish, receiving
from tests.waiting import wait_until

import cachelb
from cachelb.events.zmq.relayed import stream_name
from cachelb.events.zmq.sockets import EVENT_BYTES, REQUEST_BYTES, Listeners, make_server, make_socket
from cachelb_fakes import EventPublisher
from cachelb_gateway.relay import Relay

_PACKAGE = Path(cachelb.__file__).parent


@contextlib.contextmanager
def relayed(secret: str | None = None) -> Iterator[tuple[EventPublisher, Relay, RecordingSink]]:
    """An engine, a relay and a gateway behind it."""
    with (
        EventPublisher() as publisher,
        kv_streams.relayed(publisher, secret=secret, replay_timeout_s=600.0) as (relay, sink, _),
    ):
        publish(publisher, 0)
        sink.wait_applied([0], W)
        service = relay._service
        assert service is not None
        wait_until(lambda: not service._passages._open)
        yield publisher, relay, sink


def _option(socket: zmq.Socket[bytes], option: int) -> int:
    value = socket.get(option)
    assert isinstance(value, int)
    return value


def test_every_socket_is_made_in_one_place() -> None:
    elsewhere = []
    for path in _PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if is_call and node.func.attr == "socket" and not ast.unparse(node.func).startswith("socket."):  # type: ignore[attr-defined]
                elsewhere.append(str(path.relative_to(_PACKAGE)))
    assert elsewhere == ["events/zmq/sockets.py"]


def test_every_socket_that_is_open_has_limits() -> None:
    before = [each for each in gc.get_objects() if isinstance(each, zmq.Socket)]  # kept, so that no other has its id
    known = set(map(id, before))
    with relayed(), routers(MeshFleet(), 2):
        found = [
            each
            for each in gc.get_objects()
            if isinstance(each, zmq.Socket) and not each.closed and id(each) not in known and each.type != zmq.PAIR
        ]
        kinds = {each.type for each in found}
        assert {zmq.SUB, zmq.DEALER, zmq.ROUTER} <= kinds
        for each in found:
            limits = [_option(each, option) for option in (zmq.RCVHWM, zmq.SNDHWM, zmq.MAXMSGSIZE)]
            assert all(limit > 0 for limit in limits), limits
            assert _option(each, zmq.MAXMSGSIZE) <= 2 * EVENT_BYTES
            assert _option(each, zmq.HANDSHAKE_IVL) == 2000
            assert _option(each, zmq.BACKLOG) <= 128
            if each.type == zmq.ROUTER:
                assert _option(each, zmq.RCVHWM) * _option(each, zmq.MAXMSGSIZE) <= 1 << 20


def test_connections_that_say_nothing_are_ended() -> None:
    with make_router() as router, relayed() as (publisher, relay, sink):
        mesh = MeshFleet().member()
        router.attach(mesh)
        places = [place(each, above=above) for each in (mesh.address, relay.address) for above in (0, 1)]
        with silent_connections(60, *places) as connections:
            assert all(map(is_ended, connections))
        publish(publisher, 1)
        sink.wait_applied([0, 1], W)


@pytest.mark.parametrize("which", ["mesh", "relay"])
def test_subscriptions_of_strangers_are_not_kept(which: str) -> None:
    """20,000 topics of 200 bytes take 200 MB of a PUB or XPUB socket."""
    with make_router() as router, relayed() as (publisher, relay, sink):
        mesh = MeshFleet().member()
        router.attach(mesh)
        before = resident_mb()
        subscribe_often(place(mesh.address if which == "mesh" else relay.address), 20_000, 200)
        publish(publisher, 1)
        sink.wait_applied([0, 1], W)
        assert resident_mb() < before + 60
        assert relay.stats().subscribers == 1
        assert mesh.stats().failures == 0


def test_streams_that_a_relay_does_not_have_are_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cachelb_gateway.relay.service._LISTENERS", 3)
    with relayed() as (publisher, relay, sink), zmq.Context() as context, contextlib.ExitStack() as stack:
        dealers = [stack.enter_context(context.socket(zmq.DEALER)) for _ in range(5)]
        for dealer in dealers:
            dealer.linger, dealer.rcvtimeo = 0, 30_000
            dealer.connect(relay.address)
        for number in range(500):
            dealers[0].send(stream_name((f"http://gpu{number}", None)))
            dealers[0].recv_multipart()
        assert relay.stats().subscribers == 1
        for dealer in dealers:
            dealer.send(stream_name((W, None)))
        wait_until(lambda: relay.stats().refused == 3)
        assert relay.stats().subscribers == 3, "the gateway and two of the five"
        publish(publisher, 1)
        sink.wait_applied([0, 1], W)


@pytest.mark.parametrize("secret", [None, "not the one of the relay"])
def test_a_relay_with_a_secret_serves_those_who_have_it_too(secret: str | None) -> None:
    with relayed("the one of the relay") as (publisher, relay, sink):
        stranger = RecordingSink({W: 1})
        with receiving(stranger, None, relay=relay.address, secret=secret) as source:
            refusals = {"no ZeroMQ there", "not reachable"}
            wait_until(lambda: any(each.last_error in refusals for each in source.stats().streams.values()))
            publish(publisher, 1)
            sink.wait_applied([0, 1], W)
            assert (relay.stats().subscribers, relay.stats().refused) == (1, 0)
            assert stranger.of(W).told == []


def test_listeners_are_bounded_and_those_that_are_gone_make_room() -> None:
    with zmq.Context() as context, make_server(context, 10, None) as server:
        port = server.bind_to_random_port("tcp://127.0.0.1")
        server.rcvtimeo = 30_000
        listeners = Listeners(server, 2)
        with contextlib.ExitStack() as stack:
            for expected in (True, True, False):
                peer = stack.enter_context(
                    make_socket(context, zmq.DEALER, receives=10, sends=10, most_bytes=REQUEST_BYTES)
                )
                peer.connect(f"tcp://127.0.0.1:{port}")
                peer.send(b"")
                assert listeners.add(b"", server.recv_multipart()[0]) is expected
            assert len(listeners) == 2

        def gone() -> bool:
            listeners.send(b"", [b"news"])
            return len(listeners) == 0

        wait_until(gone)


def test_a_request_that_is_too_long_ends_its_connection_only() -> None:
    with relayed() as (publisher, relay, sink), zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        monitor = dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        monitor.rcvtimeo = 30_000
        dealer.connect(relay.address)
        dealer.send(bytes(REQUEST_BYTES + 1))
        assert monitor.recv_multipart()
        dealer.disable_monitor()
        monitor.close(0)
        publish(publisher, 1)
        sink.wait_applied([0, 1], W)
        assert relay.stats().subscribers == 1
