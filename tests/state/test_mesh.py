"""What only the mesh has: addresses."""

from __future__ import annotations

from typing import Any

import pytest
from tests.state.transports import make_router

from cachelb.state import ZmqMesh


def test_wrong_arguments_are_named() -> None:
    for arguments, message in [
        (("ipc://x", []), "bind must be an address like"),
        ((7700, []), "bind must be text"),
        (("tcp://127.0.0.1:*", "tcp://a:1"), "peers must be a sequence"),
        (("tcp://127.0.0.1:*", [7]), "a peer must be text"),
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
