"""Mistakes that type checkers must find. Each line that ends in `wrong` is one error, and there is no other."""

from __future__ import annotations

from dataclasses import dataclass

from cachelb import Router
from cachelb.policies import CacheAware, FleetView, RequestView, RoundRobin


@dataclass(frozen=True)
class Replica:
    """A worker."""

    url: str


class Text:
    """A policy that returns a key instead of a position."""

    name = "text"
    needs = frozenset({"tokens"})

    def choose(self, request: RequestView, fleet: FleetView) -> str:
        return fleet.keys[request.randrange(len(fleet))]


async def mistakes(replicas: list[Replica]) -> None:
    router = Router(replicas)
    router.select_worker(tokens=[1]).worker.upper()  # wrong
    Router(replicas, key=lambda replica: len(replica.url))  # wrong
    await router.select_worker_when_ready(tokens=[1])  # wrong
    router.select_worker(prompt="hello")  # wrong
    router.reserve(tokens=[1])  # wrong
    router.add_worker("http://gpu0:8000")  # wrong
    Router(replicas, policy=Text())  # wrong
    Router(replicas, policy="cache-aware", load_facter=1.5)  # wrong
    CacheAware(load_facter=1.5)  # wrong
    CacheAware(index="tree")  # wrong
    RoundRobin(hash_seed=1)  # wrong
