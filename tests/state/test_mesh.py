"""What only the mesh has: addresses."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.state.addresses import free_addresses, wait_until
from tests.state.transports import STORY, make_router

from cachelb.state import ZmqMesh


def test_list_of_peers_that_fails_or_hangs_leaves_those_that_are_known(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cachelb.state.zmq_carrier._PEERS_S", 0.01)
    first, second = free_addresses(2)
    asked: list[str] = []
    mood, may_end = "answers", threading.Event()

    def peers() -> list[str]:
        asked.append(mood)
        if mood == "fails":
            raise OSError("no such name")
        if mood == "hangs":
            may_end.wait()
        return [first]

    try:
        with make_router() as router, make_router() as other:
            router.attach(ZmqMesh(first, []))
            mesh = ZmqMesh(second, peers)
            other.attach(mesh)
            for mood in ("answers", "fails", "hangs"):
                wait_until(lambda: asked.count(mood) >= (1 if mood == "hangs" else 2))  # noqa: B023 - called at once
                with router.select_worker(tokens=STORY):
                    wait_until(lambda: sum(other.loads().values()) == 1)
                wait_until(lambda: sum(other.loads().values()) == 0)
            assert mesh.stats().failures == mesh.stats().gaps - 1 == 0
    finally:
        may_end.set()
    assert caplog.text.count("could not be had") == 1


def test_wrong_arguments_are_named() -> None:
    for arguments, message in [
        (("ipc://x", []), "bind must be an address like"),
        ((7700, []), "bind must be text"),
        (("tcp://127.0.0.1:*", "tcp://a:1"), "peers must be a sequence"),
        (("tcp://127.0.0.1:*", [7]), "a peer must be text"),
        (("tcp://127.0.0.1:*", ["gpu0:7700"]), "a peer must be an address like .*, got 'gpu0:7700'"),
        (("tcp://127.0.0.1:*", ["tcp://a:65535"]), "a peer must be an address like .*, got 'tcp://a:65535'"),
    ]:
        with pytest.raises((TypeError, ValueError), match=message):
            ZmqMesh(*arguments)  # type: ignore[arg-type]
    options: list[tuple[dict[str, Any], str]] = [
        ({"secret": ""}, "secret must not be empty"),
        ({"interval_s": 0}, "interval_s must be above 0"),
        ({"peer_timeout_s": 0.5}, "peer_timeout_s must be 1 or more"),
        ({"warm_start_s": -1}, "warm_start_s must be 0 or more"),
        ({"ttl_s": "long"}, "ttl_s must be a number"),
    ]
    for option, message in options:
        with pytest.raises((TypeError, ValueError), match=message):
            ZmqMesh("tcp://127.0.0.1:*", [], **option)
    with make_router() as router, pytest.raises(OSError, match="cannot publish at"):
        router.attach(ZmqMesh("tcp://192.0.2.1:7700", []))
