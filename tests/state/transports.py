"""Fleets of routers that share state, over each transport."""

from __future__ import annotations

import os
import socket
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from tests.cutting_proxy import CuttingProxy

from cachelb import Router
from cachelb.state import RedisState, ZmqMesh

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.state.redis_server import RedisServer

    State: TypeAlias = ZmqMesh | RedisState

WORKERS = [f"gpu{at}" for at in range(4)]
STORY = list(range(1000))
SECRET = "of the fleet"  # noqa: S105 - of these tests


def wait_until(done: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def free_addresses(count: int) -> list[str]:
    """Addresses whose port and the one above it are free now."""
    found: list[str] = []
    while len(found) < count:
        with socket.socket() as probe, socket.socket() as above:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            try:
                above.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
        address = f"tcp://127.0.0.1:{port}"
        if address not in found:
            found.append(address)
    return found


class Fleet(Protocol):
    """Makes members that reach each other."""

    def member(self, **options: Any) -> State:
        """One more, to be attached."""
        ...

    def cut_off(self, **options: Any) -> tuple[State, CuttingProxy]:
        """One more, that hears the first member through a proxy only."""
        ...


class MeshFleet:
    """Members that talk to each other: at most five at a time, which take the addresses in turn."""

    def __init__(self) -> None:
        self._addresses = free_addresses(6)
        self._made = 0

    def member(self, **options: Any) -> ZmqMesh:
        return ZmqMesh(self._next(), self._addresses[:5], **options)

    def cut_off(self, **options: Any) -> tuple[ZmqMesh, CuttingProxy]:
        first, between = (int(address.rpartition(":")[2]) for address in (self._addresses[0], self._addresses[5]))
        return ZmqMesh(self._next(), [self._addresses[5]], **options), CuttingProxy(between, first)

    def _next(self) -> str:
        self._made += 1
        return self._addresses[(self._made - 1) % 5]


class RedisFleet:
    """Members that share a stream of a server."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.stream = f"fleet-{os.urandom(4).hex()}"

    def member(self, **options: Any) -> RedisState:
        return RedisState(self.server.url, **{"stream": self.stream, **options})

    def cut_off(self, **options: Any) -> tuple[RedisState, CuttingProxy]:
        port = int(free_addresses(1)[0].rpartition(":")[2])
        state = RedisState(f"redis://127.0.0.1:{port}", stream=self.stream, **options)
        return state, CuttingProxy(port, self.server.port)


def make_router(**options: Any) -> Router[str]:
    return Router(WORKERS, **{"hash_seed": 7, "policy": "cache-aware", "seed": 1, **options})


@contextmanager
def routers(fleet: Fleet, count: int, **options: Any) -> Iterator[list[tuple[Router[str], State]]]:
    """Routers that hear each other."""
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            router, state = stack.enter_context(make_router()), fleet.member(**options)
            router.attach(state)
            found.append((router, state))
        wait_until(lambda: all(len(state.stats().peers) == count - 1 for _, state in found))
        yield found


def matched(router: Router[str], tokens: list[int] = STORY) -> float:
    return max(worker.matched_tokens for worker in router.explain(tokens=tokens).candidates)


def load(router: Router[str]) -> int:
    return int(sum(router.loads().values()))
