"""The cost of one call of the router. Each call is timed alone; medians are read by `report.py`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from cachelb import Router
from cachelb.policies import POLICIES, lowest
from cachelb.router.flat import grouped

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

    from cachelb.policies import FleetView, RequestView

KNOWN = 4_000
IN_FLIGHT = 128
ROUNDS = 5_000
OPTIONS: dict[str, dict[str, Any]] = {"session": {"base": "cache-aware"}}


def label(benchmark: BenchmarkFixture, name: str, note: str) -> None:
    """Name the row in the report."""
    benchmark.extra_info.update(id=f"python/router/{name}", note=note)


def run(benchmark: BenchmarkFixture, router: Router[str], requests: list[dict[str, Any]], rounds: int = ROUNDS) -> None:
    """Time selections beside `IN_FLIGHT` bookings. Each is dropped at once, so its release is in the time."""
    for request in requests:
        router.select_worker(**request).on_complete()
    order = iter(np.random.default_rng(2).integers(0, len(requests), rounds + IN_FLIGHT + 1_000).tolist())
    in_flight = [router.select_worker(**requests[next(order)]) for _ in range(IN_FLIGHT)]

    def setup() -> tuple[tuple[()], dict[str, Any]]:
        return (), requests[next(order)]

    benchmark.pedantic(router.select_worker, setup=setup, rounds=rounds, warmup_rounds=100)
    assert router.stats().open_requests == len(in_flight)


def prompts(count: int = KNOWN) -> list[dict[str, Any]]:
    """Draw requests of 512 tokens in a buffer, an eighth of them with a session."""
    random = np.random.default_rng(1)
    tokens = [random.integers(0, 128_000, 512, dtype=np.uint32) for _ in range(count)]
    return [{"tokens": t} | ({"session": f"s{i}"} if i % 8 == 0 else {}) for i, t in enumerate(tokens)]


def fleet(workers: int, **options: Any) -> Router[str]:  # noqa: ANN401 - the arguments of a router
    """Build a router over that many workers."""
    names = [f"http://gpu{index}:8000" for index in range(workers)]
    return Router(names, seed=1, hash_seed=1, **grouped(options))


@pytest.mark.parametrize("policy", POLICIES)
def test_policy(benchmark: BenchmarkFixture, policy: str) -> None:
    """Select among 64 workers for one of many known 512-token prompts, by every policy."""
    label(benchmark, f"64/{policy}", f"512-token buffer, {KNOWN} prompts known, {IN_FLIGHT} in flight")
    run(benchmark, fleet(64, policy=policy, **OPTIONS.get(policy, {})), prompts())


class FewestTokens:
    """A policy in Python that reads three columns."""

    name = "custom"
    needs = frozenset({"tokens"})

    def choose(self, request: RequestView, fleet: FleetView) -> int:
        """Pick the worker that has the fewest tokens to compute, in proportion to its weight."""
        waiting = fleet.column("pending_prefill_tokens") + fleet.column("uncached_tokens")
        return lowest(waiting / fleet.column("weight"), request)


def test_custom_policy(benchmark: BenchmarkFixture) -> None:
    """Select by a policy of the caller's own, in Python."""
    label(benchmark, "64/custom", "512-token buffer, a policy in Python on three columns")
    run(benchmark, fleet(64, policy=FewestTokens()), prompts())


def test_large_fleet(benchmark: BenchmarkFixture) -> None:
    """Select among 1,024 workers."""
    label(benchmark, "1024/cache-aware", "512-token buffer")
    run(benchmark, fleet(1_024, policy="cache-aware"), prompts())


def test_text(benchmark: BenchmarkFixture) -> None:
    """Select for a text of 8,192 characters."""
    letters = np.random.default_rng(1).integers(97, 123, (400, 8_192), dtype=np.uint8)
    label(benchmark, "64/text-8192", "8,192 ASCII characters, 400 texts known")
    run(benchmark, fleet(64, policy="cache-aware"), [{"text": row.tobytes().decode()} for row in letters])


def test_messages(benchmark: BenchmarkFixture) -> None:
    """Select for a chat of 20 messages, 8,000 characters in all."""
    letters = np.random.default_rng(1).integers(97, 123, (400, 20, 400), dtype=np.uint8)
    chats = [[{"role": "user", "content": row.tobytes().decode()} for row in chat] for chat in letters]
    label(benchmark, "64/messages-20", "20 messages of 400 characters, 400 chats known")
    run(benchmark, fleet(64, policy="cache-aware"), [{"messages": chat} for chat in chats])


HEADERS = {
    "host": "gateway",
    "user-agent": "OpenAI/Python 1.109.1",
    "accept": "application/json",
    "authorization": "Bearer key",
    "content-type": "application/json",
    "content-length": "2332",
    "x-request-id": "0f1e2d3c",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
}


@pytest.mark.parametrize("headers", [None, HEADERS], ids=["alone", "headers"])
def test_body(benchmark: BenchmarkFixture, headers: dict[str, str] | None) -> None:
    """Select for the body of a chat, as the core's bench of bodies has it: 17 messages of 103 characters."""
    letters = np.random.default_rng(1).integers(97, 123, (400, 17, 103), dtype=np.uint8)
    requests: list[dict[str, Any]] = []
    for chat in letters:
        roles = ["system", *("user", "assistant") * 8]
        messages = [{"role": role, "content": row.tobytes().decode()} for role, row in zip(roles, chat, strict=True)]
        fields = {"messages": messages, "model": "example", "stream": True}
        body = json.dumps(fields, separators=(",", ":")).encode()
        requests.append({"body": body, "path": "/v1/chat/completions", "headers": headers})
    kind = "headers" if headers else "alone"
    label(benchmark, f"64/body-2K/{kind}", f"{len(requests[0]['body'])} bytes in 17 messages, 400 chats known")
    run(benchmark, fleet(64, policy="cache-aware"), requests)
