"""Types that checkers must infer of a router over five kinds of workers, and of policies of one's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, assert_type

from cachelb import Decision, PairDecision, Pairs, Router
from cachelb.policies import CacheAware, FleetView, LeastLoaded, Policy, RequestView, lowest
from cachelb.types import Reason, Reservation


@dataclass(frozen=True)
class Replica:
    """A frozen dataclass."""

    url: str
    gpu: str = "a100"


class Engine:
    """A plain class with a property."""

    @property
    def url(self) -> str:
        return "http://gpu0:8000"


class Address(NamedTuple):
    """A named tuple."""

    id: str
    port: int


def strings() -> None:
    router = Router(["http://gpu0:8000"], seed=1, policy="rendezvous")
    assert_type(router, Router[str])
    assert_type(router.select_worker(tokens=[1, 2, 3]).worker, str)
    assert_type(router.workers(), list[str])
    router.add_worker("http://gpu1:8000", weight=2.0, role="decode")


def dataclasses(replicas: list[Replica]) -> None:
    router = Router(replicas)
    decision = router.select_worker(text="hello", session="chat")
    assert_type(decision, Decision[Replica])
    assert_type(decision.worker.gpu, str)
    assert_type(decision.retry().worker, Replica)
    router.set_ready("http://gpu0:8000", ready=True)
    router.remove_worker(replicas[0], drain=True)


def properties(engines: tuple[Engine, ...]) -> None:
    with Router(engines) as router, router.select_worker(messages=[{"role": "user", "content": "hi"}]) as decision:
        assert_type(decision.worker, Engine)


def mappings(deployments: list[dict[str, Any]]) -> None:
    router = Router(deployments, key=lambda deployment: str(deployment["id"]))
    assert_type(router.select_worker(prompt_tokens=10).worker, dict[str, Any])
    assert_type(router.select_pair(prompt_tokens=10), PairDecision[dict[str, Any]])
    assert_type(router.reserve("a", prompt_tokens=10, cache_ttl_s=300), Decision[dict[str, Any]])
    assert_type(router.reserve("a", track_prefill_tokens=False).reservation(), Reservation)


async def named_tuples(addresses: set[Address]) -> None:
    router = Router[Address](policy=LeastLoaded(load="tokens"))
    router.sync_workers(addresses)
    decision = await router.select_worker_when_ready(timeout_s=5, tokens=range(100))
    assert_type(decision.worker.port, int)
    assert_type(router.select_batch([{"prompt_tokens": 1}]), list[Decision[Address]])


class FewestTokens:
    """A policy with attributes of the class."""

    name = "fewest-tokens"
    needs = frozenset({"tokens"})

    def choose(self, request: RequestView, fleet: FleetView) -> int:
        return lowest(fleet.column("pending_prefill_tokens"), request)


class Sticky:
    """A policy with attributes of its own, and a reason."""

    def __init__(self) -> None:
        self.name = "sticky"
        self.needs = frozenset({"session"})

    def choose(self, request: RequestView, fleet: FleetView) -> tuple[int, Reason]:
        assert_type(request.key, int | None)
        return (request.key or 0) % len(fleet), "session"


class Named(Policy):
    """A policy that inherits from the protocol."""

    @property
    def name(self) -> str:
        return "named"

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"load"})

    def choose(self, request: RequestView, fleet: FleetView) -> int:
        return request.randrange(len(fleet))


def of_any(policy: Policy) -> Router[str]:
    return Router(["gpu0"], policy=policy)


def any_policies() -> None:
    for policy in (Named(), CacheAware(), FewestTokens()):
        of_any(policy)
    of_any(CacheAware)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    of_any(object())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def own_policies() -> None:
    policies: list[Policy] = [FewestTokens(), Sticky(), CacheAware()]
    router = Router(["gpu0"], policy=FewestTokens(), shadow=[*policies, "random"], pairs=Pairs(decode=Sticky()))
    assert_type(router.policy.shadows, tuple[str, ...])
