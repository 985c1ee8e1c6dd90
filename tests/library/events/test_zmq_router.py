"""Engines, sockets, a relay and routers: their views are the engines' caches, behind the relay or beside it."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.http_client import complete
from tests.models.kv_streams import nothing_left
from tests.waiting import wait_until

from cachelb import Router
from cachelb.events import ZmqSource
from cachelb_fakes import FakeFleet, FakeWorker
from cachelb_gateway.relay import Relay

BLOCK = 4


@contextlib.contextmanager
def gateways(fleet: FakeFleet, *sources: ZmqSource) -> Iterator[list[Router[str]]]:
    """A router for each source."""
    with contextlib.ExitStack() as stack:
        found = []
        for source in sources:
            router = stack.enter_context(Router(fleet.urls, policy="kv-aware", block_size=BLOCK, seed=1))
            router.attach(source)
            found.append(router)
        yield found


def held(worker: FakeWorker, prompt: list[int]) -> int:
    """Return how many leading tokens of a prompt an engine holds."""
    tokens = np.array(prompt, dtype=np.uint32)
    cache = worker._replica.engine.cache
    # The token behind it is the one that is always computed.
    more = np.append(tokens, np.uint32(0))
    return int(worker._thread.call(lambda: cache.look_up(more, None)))


def believed(router: Router[str], prompt: list[int]) -> dict[str, int]:
    """Return how many leading tokens of a prompt every worker holds by the router; nothing is ever routed here."""
    return {candidate.key: BLOCK * candidate.overlap_blocks for candidate in router.explain(tokens=prompt).candidates}


def wait_true(fleet: FakeFleet, router: Router[str], prompts: list[list[int]]) -> None:
    """Wait until the router is right about every prompt and worker."""
    for prompt in prompts:
        wait_until(lambda prompt=prompt: believed(router, prompt) == {w.url: held(w, prompt) for w in fleet.workers})  # type: ignore[misc]
    router.validate()


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    """Prompts that share beginnings of all lengths."""
    rng = random.Random(seed)
    made = [[rng.randrange(1000) for _ in range(40)]]
    while len(made) < count:
        start = rng.choice(made)[: BLOCK * rng.randrange(10)]
        made.append(start + [rng.randrange(1000) for _ in range(40 - len(start))])
    return made


@pytest.mark.parametrize("seed", range(3))
def test_two_gateways_behind_a_relay_and_one_beside_it_end_alike(seed: int) -> None:
    rng = random.Random(seed)
    with nothing_left(), FakeFleet(2, kv_events=True, block_size=BLOCK, kv_blocks=60, default_max_tokens=1) as fleet:
        options: dict[str, Any] = {"workers": fleet.urls, "endpoints": fleet.kv_endpoint}
        relay = Relay("tcp://127.0.0.1:*", **options)
        relay.start()
        sources = [
            ZmqSource(endpoints=fleet.kv_endpoint),
            *(ZmqSource(relay=relay.address) for _ in range(2)),
        ]
        with gateways(fleet, *sources) as routers:
            sent = prompts(100, seed)
            for number, prompt in enumerate(sent):
                complete(fleet.urls[number % 2], prompt)
                worker = rng.choice(fleet.workers)
                assert worker.events is not None
                match rng.randrange(14):
                    case 0:
                        worker.events.drop(rng.randrange(1, 4))
                    case 1:
                        worker.stop()
                        worker.start(restart=True)
                    case 2:
                        worker.events.stop()
                        worker.events.start()
                    case 3:
                        address = relay.address
                        relay.stop()
                        relay = Relay(address, **options)
                        relay.start()
            for worker in fleet.workers:
                assert worker.events is not None
                worker.events.drop(0)
                complete(worker.url, [7] * 40)  # no later message shows that the last one was lost
            for router in routers:
                wait_true(fleet, router, sent)
            direct, *others = routers
            for prompt in sent:
                assert all(believed(router, prompt) == believed(direct, prompt) for router in others)
        relay.stop()


def test_a_router_may_be_behind_the_relay_that_it_runs() -> None:
    with (
        FakeFleet(1, kv_events=True, block_size=BLOCK) as fleet,
        Router(fleet.urls, policy="kv-aware", block_size=BLOCK, seed=1) as router,
    ):
        relay = Relay("tcp://127.0.0.1:*", endpoints=fleet.kv_endpoint)
        router.attach(relay)
        router.attach(ZmqSource(relay=relay.address))
        added = fleet.add_worker()
        router.add_worker(added.url)
        for url in fleet.urls:
            complete(url, prompts(1)[0])
        wait_true(fleet, router, prompts(1))
        assert added.events is not None
        assert added.events.subscribers == 1
        router.remove_worker(added.url)
        wait_until(lambda: [key for key, _ in relay.stats().streams] == fleet.urls[:1])


def test_closing_the_router_ends_the_source() -> None:
    with nothing_left(), FakeFleet(1, kv_events=True) as fleet:
        source = ZmqSource(endpoints=fleet.kv_endpoint)
        router = Router(fleet.urls, policy="kv-aware")
        router.attach(source)
        worker = fleet.workers[0]
        assert worker.events is not None
        worker.events.wait_for(lambda: worker.events is not None and worker.events.subscribers == 1)
        router.close()
        worker.events.wait_for(lambda: worker.events is not None and worker.events.subscribers == 0)
        assert source.stats().streams == {}
