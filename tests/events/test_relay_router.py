"""Engines, a relay and routers: those behind the relay believe what one that is connected to the engines does."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import pytest
from tests.events.test_zmq_router import BLOCK, believed, prompts, wait_true
from tests.http_client import complete
from tests.models.kv_streams import nothing_left
from tests.models.metrics_server import eventually

from cachelb import Router
from cachelb.events import Relay, ZmqSource
from cachelb.testing import FakeFleet


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
                complete(worker.url, [7] * 40)  # after the last message nobody knows that it was lost
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
        eventually(lambda: [key for key, _ in relay.stats().streams] == fleet.urls[:1])
