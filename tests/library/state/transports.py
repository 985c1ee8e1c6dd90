"""Fleets of routers that share state, over each transport."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol, TypeAlias, TypeVar

from tests.cutting_proxy import CuttingProxy
from tests.library.state.addresses import free_addresses
from tests.library.state.redis_server import RedisServer
from tests.ports import free_ports
from tests.routers import flat_router
from tests.waiting import wait_until

from cachelb import Router
from cachelb.state import RedisState, ZmqMesh
from cachelb.state.attachment import Attachment

WORKERS = [f"gpu{at}" for at in range(4)]
STORY = list(range(1000))
SECRET, OTHER = "known to all gateways", "known to others only"
PATIENT: dict[str, Any] = {"peer_timeout_s": 60.0}
"""No peer is taken for gone because this process stood still; tests of lost peers set the timeout."""


State: TypeAlias = ZmqMesh | RedisState
S = TypeVar("S", bound=Attachment)
S_co = TypeVar("S_co", covariant=True)


class Members(Protocol[S_co]):
    """Makes members that reach each other."""

    def member(self, **options: Any) -> S_co:
        """One more, to be attached."""
        ...


class FleetOf(Members[S_co], Protocol[S_co]):
    """Makes members of which some are out of reach."""

    def cut_off(self, **options: Any) -> tuple[S_co, CuttingProxy]:
        """One more, that receives from the first member through a proxy only."""
        ...


Fleet: TypeAlias = "FleetOf[State]"


class MeshFleet:
    """Members that talk to each other: at most five at a time, which take the addresses in turn."""

    def __init__(self) -> None:
        self._addresses = free_addresses(6)
        self._made = 0

    def member(self, **options: Any) -> ZmqMesh:
        return ZmqMesh(self._next(), self._addresses[:5], **PATIENT | options)

    def cut_off(self, **options: Any) -> tuple[ZmqMesh, CuttingProxy]:
        first, between = (int(address.rpartition(":")[2]) for address in (self._addresses[0], self._addresses[5]))
        return ZmqMesh(self._next(), [self._addresses[5]], **PATIENT | options), CuttingProxy(between, first)

    def _next(self) -> str:
        self._made += 1
        return self._addresses[(self._made - 1) % 5]


class RedisFleet:
    """Members that share a stream of a server."""

    def __init__(self, server: RedisServer, stream: str | None = None) -> None:
        self.server = server
        self.stream = stream or f"fleet-{os.urandom(4).hex()}"

    def member(self, **options: Any) -> RedisState:
        return RedisState(self.server.url, **{"stream": self.stream, **PATIENT, **options})

    def cut_off(self, **options: Any) -> tuple[RedisState, CuttingProxy]:
        port = free_ports(1)[0]
        state = RedisState(f"redis://127.0.0.1:{port}", stream=self.stream, **PATIENT | options)
        return state, CuttingProxy(port, self.server.port)


def make_router(**options: Any) -> Router[str]:
    return flat_router(WORKERS, options, secret=SECRET, policy="cache-aware", seed=1)


@contextmanager
def routers(
    fleet: Members[S], count: int, *, make: dict[str, Any] | None = None, **options: Any
) -> Iterator[list[tuple[Router[str], S]]]:
    """Routers that share state, made with options."""
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            router, state = stack.enter_context(make_router(**make or {})), fleet.member(**options)
            router.attach(state)
            found.append((router, state))
        wait_until(lambda: all(len(state.stats().peers) == count - 1 and is_settled(state) for _, state in found))
        yield found


def is_settled(state: Attachment) -> bool:
    """Whether it misses nothing of its peers, and they were not asked for more."""
    assert state._runs.latest is not None
    peers = list(state._runs.latest._peers.values())
    return all(peer.asked_s is peer.part_s is peer.missing_s is None for peer in peers)


def expire_after(state: State, peer_timeout_s: float) -> None:
    """From now on a peer is gone after so many seconds."""
    run = state._runs.latest
    assert run is not None
    run._settings.peer_timeout_s = peer_timeout_s


def matched(router: Router[str], tokens: list[int] = STORY) -> float:
    return max(worker.matched_tokens for worker in router.explain(tokens=tokens).candidates)


def load(router: Router[str]) -> int:
    return int(sum(router.loads().values()))


def same_loads(found: Sequence[tuple[Router[str], ZmqMesh | RedisState]]) -> bool:
    loads = [router.loads() for router, _ in found]
    return all(each == loads[0] for each in loads)
