"""Servers and fleets of the tests of sharing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from tests.library.state.redis_server import RedisServer
from tests.library.state.transports import Fleet, MeshFleet, RedisFleet

from cachelb.state import zmq_carrier
from cachelb.state.redis import carrier as redis_carrier
from cachelb.state.redis import link as redis_link


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that stands still for seconds is no broken connection; tests of those leave this out."""
    waits: dict[int, int] = {zmq.HANDSHAKE_IVL: 60_000, zmq.HEARTBEAT_TIMEOUT: 60_000}
    monkeypatch.setattr(zmq_carrier, "_OPTIONS", dict(zmq_carrier._OPTIONS) | waits)
    monkeypatch.setattr(redis_link, "_TIMEOUT_S", 60.0)
    monkeypatch.setattr(redis_carrier, "_ECHO_S", 60.0)
    monkeypatch.setattr(redis_carrier, "_HELD_S", 60.0)


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server for tests that leave it as it is."""
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server that a test may break."""
    with RedisServer(tmp_path) as server:
        yield server


@pytest.fixture
def redis_fleet(shared_server: RedisServer) -> RedisFleet:
    """A stream of its own."""
    return RedisFleet(shared_server)


@pytest.fixture(params=["mesh", "redis"])
def fleet(request: pytest.FixtureRequest) -> Fleet:
    """Each transport."""
    if request.param == "mesh":
        return MeshFleet()
    return RedisFleet(request.getfixturevalue("shared_server"))
