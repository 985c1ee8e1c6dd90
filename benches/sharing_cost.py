"""The cost of sharing per selection, and the bytes on the wire: a router alone and with a peer, taking turns.

python -m benches.sharing_cost [SECONDS]

Two routers with 64 workers each; every prompt has 512 tokens, half of them new. Over the mesh, and over a Redis server
that this starts, if there is one on PATH or `make redis` fetched one. Prints JSON lines for `report.py`.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.library.state.addresses import free_addresses
from tests.library.state.redis_server import RedisServer

from cachelb import Router
from cachelb.state import RedisState, ZmqMesh

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

WORKERS = [f"gpu{at}" for at in range(64)]
SECRET = "known to all gateways"  # noqa: S105 - of this bench
BATCH = 200
RATES = (200, 1000)
IDLE = 4


def prompt(dice: random.Random) -> list[int]:
    """Make a prompt of 32 blocks, half of them new."""
    return [*range(256), *(dice.randrange(1 << 20) for _ in range(256))]


def batch(router: Router[str], dice: random.Random) -> float:
    """Route a batch. Returns the median in microseconds."""
    found = []
    for _ in range(BATCH):
        tokens = prompt(dice)
        start = time.perf_counter_ns()
        decision = router.select_worker(tokens=tokens)
        found.append(time.perf_counter_ns() - start)
        decision.on_first_token()
        decision.on_complete()
    return statistics.median(found) / 1e3


def line(name: str, unit: str, values: list[float], count: int, note: str) -> None:
    """Print a row."""
    row = {"id": f"python/sharing/{name}", "unit": unit, "p50": statistics.median(values), "p99": max(values)}
    print(json.dumps({**row, "n": count, "note": note}), flush=True)


def make_router() -> Router[str]:
    """Build a router with a fixed policy: the default differs between the versions compared."""
    return Router(WORKERS, policy="cache-aware", secret=SECRET)


def selections(transport: str, states: list[ZmqMesh] | list[RedisState], seconds: float) -> None:
    """Compare selections with and without sharing."""
    dice = random.Random(1)
    with make_router() as alone, make_router() as shared, make_router() as peer:
        shared.attach(states[0])
        peer.attach(states[1])
        while not states[0].stats().peers:
            time.sleep(0.01)
        found: dict[str, list[float]] = {"alone": [], "shared": []}
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            found["alone"].append(batch(alone, dice))
            found["shared"].append(batch(shared, dice))
        added = [b - a for a, b in zip(found["alone"], found["shared"], strict=True)]
        note = "512 tokens, half new, 64 workers; median of the medians of batches, and the worst of them"
        for name, values in [*found.items(), ("added", added)]:
            line(f"select/{transport}/{name}", "us", values, len(values) * BATCH, note)


@contextmanager
def server() -> Iterator[tuple[str, redis.Redis] | None]:
    """Start a Redis server, if there is one."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = RedisServer(Path(folder))
        except pytest.skip.Exception as error:
            print(f"{error}; its rows are left out", file=sys.stderr)
            yield None
            return
        try:
            with found.client() as client:
                yield found.url, client
        finally:
            found.kill()


def traffic(client: redis.Redis) -> tuple[int, int]:
    """Bytes that the server received and sent so far."""
    found = client.info("stats")
    return found["total_net_input_bytes"], found["total_net_output_bytes"]


def wire(transport: str, client: redis.Redis, states: list[RedisState], rate: int, seconds: float) -> None:
    """Count bytes at a steady rate: those that the router sends per block, and those that each router reads."""
    dice = random.Random(2)
    with make_router() as router, make_router() as peer:
        router.attach(states[0])
        peer.attach(states[1])
        while not states[1].stats().peers:
            time.sleep(0.01)
        router.select_worker(tokens=prompt(dice)).on_complete()
        time.sleep(1)
        before, blocks = traffic(client), states[1].stats().blocks
        start = time.monotonic()
        for at in range(int(seconds * rate)):
            time.sleep(max(0.0, start + at / rate - time.monotonic()))
            decision = router.select_worker(tokens=prompt(dice))
            decision.on_first_token()
            decision.on_complete()
        time.sleep(0.5)
        after, count = traffic(client), states[1].stats().blocks - blocks
        note = f"{rate} requests a second of 16 new blocks each; all that two routers send and read, heartbeats too"
        line(f"wire/{transport}/{rate}/sent", "B/block", [(after[0] - before[0]) / count], count, note)
        line(
            f"wire/{transport}/{rate}/read",
            "B/block",
            [(after[1] - before[1]) / 2 / count],
            count,
            f"{note}; each router",
        )


def idle(transport: str, client: redis.Redis, states: list[RedisState], seconds: float) -> None:
    """Count the messages of an idle fleet."""
    routers = [make_router() for _ in states]
    for router, state in zip(routers, states, strict=True):
        router.attach(state)
    time.sleep(1.5)
    before, entries = traffic(client), client.xlen("idle")
    time.sleep(seconds)
    after = traffic(client)
    added = client.xlen("idle") - entries
    note = f"{len(states)} idle routers, sent and read together; {added} entries added to the stream"
    rate = sum(after) - sum(before)
    line(f"idle/{transport}", "kB/s/router", [rate / seconds / len(states) / 1e3], len(states), note)
    for router in routers:
        router.close()


def main(seconds: float) -> None:
    """Measure."""
    first, second = free_addresses(2)
    selections("mesh", [ZmqMesh(first, [second]), ZmqMesh(second, [first])], seconds / 3)
    with server() as found:
        if found is None:
            return
        url, client = found
        selections("redis", [RedisState(url) for _ in range(2)], seconds / 3)
        for rate in RATES:
            states = [RedisState(url, stream=f"at-{rate}") for _ in range(2)]
            wire("redis", client, states, rate, min(5.0, seconds / 4))
        idle("redis", client, [RedisState(url, stream="idle") for _ in range(IDLE)], min(5.0, seconds / 4))


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 20.0)
