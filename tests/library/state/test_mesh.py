"""Addresses, which only the mesh has."""

from __future__ import annotations

import errno
import itertools
import threading
from typing import Any

import pytest
import zmq
from tests.library.state.addresses import free_addresses
from tests.library.state.transports import PATIENT, STORY, is_settled, make_router
from tests.waiting import wait_until

from cachelb.state import ZmqMesh
from cachelb.state.zmq_carrier import ZmqCarrier


@pytest.mark.parametrize(
    "wrong", ["fails", "hangs", "tcp://a:1", ["gpu0"], itertools.count(1), itertools.repeat(0), 7, list]
)
def test_list_of_peers_that_cannot_be_had_leaves_those_that_are_known(
    wrong: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cachelb.state.zmq_carrier._PEERS_S", 0.01)
    first, second = free_addresses(2)
    asked, is_wrong, may_end = 0, False, threading.Event()

    def peers() -> Any:
        nonlocal asked
        asked += is_wrong
        if not is_wrong:
            return [first]
        if wrong == "fails":
            raise OSError("no such name")
        if wrong == "hangs":
            may_end.wait()
            return [first]  # by now another test may watch the log
        return (f"tcp://127.0.0.1:{at}" for at in wrong) if isinstance(wrong, itertools.count) else wrong

    try:
        with make_router() as router, make_router() as other:
            router.attach(ZmqMesh(first, [], **PATIENT))
            mesh = ZmqMesh(second, peers, **PATIENT)
            other.attach(mesh)
            wait_until(lambda: len(mesh.stats().peers) == 1 and is_settled(mesh))
            gaps, is_wrong = mesh.stats().gaps, True
            wait_until(lambda: asked >= (1 if wrong == "hangs" else 2))
            with router.select_worker(tokens=STORY):
                wait_until(lambda: sum(other.loads().values()) == 1)
            wait_until(lambda: sum(other.loads().values()) == 0)
            assert (mesh.stats().failures, mesh.stats().gaps) == (0, gaps), "the connections stay"
            assert caplog.text.count("could not be fetched") == (wrong != "hangs")
    finally:
        may_end.set()


def test_peer_that_cannot_be_connected_to_is_left_out_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cachelb.state.zmq_carrier._PEERS_S", 0.01)
    first, second, bad = free_addresses(3)
    connect, works, tried = ZmqCarrier._connect, False, 0

    def failing(carrier: ZmqCarrier, address: str) -> None:
        nonlocal tried
        if address == bad:
            tried += 1
            if not works:
                raise zmq.ZMQError(errno.EMFILE)
        connect(carrier, address)

    monkeypatch.setattr(ZmqCarrier, "_connect", failing)
    with make_router() as router, make_router() as other:
        router.attach(ZmqMesh(first, []))
        mesh = ZmqMesh(second, [bad, first], **PATIENT)
        other.attach(mesh)
        wait_until(lambda: tried > 2)
        wait_until(lambda: len(mesh.stats().peers) == 1)
        works = True
        with make_router() as third:
            third.attach(ZmqMesh(bad, [], **PATIENT))
            wait_until(lambda: len(mesh.stats().peers) == 2)
        assert mesh.stats().failures == 0
    assert caplog.text.count(f"no connection to peer {bad}") == 1


def test_wrong_arguments_are_named() -> None:
    for arguments, message in [
        (("ipc://x", []), "bind must be an address like"),
        ((7700, []), "bind must be text"),
        (("tcp://127.0.0.1:*", "tcp://a:1"), "peers must be a sequence"),
        (("tcp://127.0.0.1:*", [7]), "a peer must be text"),
        (("tcp://127.0.0.1:*", ["gpu0:7700"]), "a peer must be an address like .*, got 'gpu0:7700'"),
        (("tcp://127.0.0.1:*", ["tcp://a:65535"]), "a peer must be an address like .*, got 'tcp://a:65535'"),
        (("tcp://127.0.0.1:*", ["tcp://a:0"]), "a peer must be an address like .*, got 'tcp://a:0'"),
        (("tcp://127.0.0.1:*", ["tcp://*:7700"]), "a peer must be an address like"),
        (("tcp://127.0.0.1:*", ["tcp://a:7700/x"]), "a peer must be an address like"),
        (("tcp://127.0.0.1:*", ["tcp://me@a:7700"]), "a peer must be an address like"),
        (("tcp://127.0.0.1:*", None), "peers must be a sequence of addresses or a function .*, got NoneType"),
        (("tcp://127.0.0.1:*", [f"tcp://a:{at}" for at in range(1, 300)]), "peers must be 256 addresses at most"),
        (("tcp://127.0.0.1:99999", []), "bind must be an address like .*, got 'tcp://127.0.0.1:99999'"),
        (("tcp://127.0.0.1:65535", []), "bind must be an address like"),
        (("tcp://127.0.0.1", []), "bind must be an address like"),
    ]:
        with pytest.raises((TypeError, ValueError), match=message):
            ZmqMesh(*arguments)  # type: ignore[arg-type]
    options: list[tuple[dict[str, Any], str]] = [
        ({"interval_s": 0}, "interval_s must be 0.001 or more, got 0"),
        ({"interval_s": 1.0}, "interval_s must be 0.5 at most, a third of peer_timeout_s, .* got 1.0"),
        ({"max_mb": 1e300}, r"max_mb must be .* at most, got 1e\+300"),
        ({"peer_timeout_s": 0.5}, "peer_timeout_s must be 1 or more"),
        ({"warm_start_s": -1}, "warm_start_s must be 0 or more"),
        ({"ttl_s": "long"}, "ttl_s must be a number"),
    ]
    for option, message in options:
        with pytest.raises((TypeError, ValueError), match=message):
            ZmqMesh("tcp://127.0.0.1:*", [], **option)
    with make_router() as router, pytest.raises(OSError, match="cannot publish at"):
        router.attach(ZmqMesh("tcp://192.0.2.1:7700", []))
