"""The gate of a release: whatever goes wrong, the books of `cachelb serve` balance and nothing of the past is kept."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from tests.gateways import wait_until
from tests.programs import running

from cachelb_fakes import FakeFleet, FakeWorker

CONCURRENCY = 64
WORKERS = 8
SYSTEM_PROMPTS = ["You are a helpful assistant. " * 30, "Answer in one word. " * 50, "Translate into French. " * 40]
ABORTED = 0.05


@contextlib.contextmanager
def gateway_process(urls: list[str]) -> Iterator[tuple[str, str, str]]:
    """Run the gateway; yield its address, the operators', and that of the router's calls."""
    with running("-m", "tests.models.chaos_gateway", *urls) as (process, output):
        url, admin_url, call_url = output.readline().split()
        yield url, admin_url, call_url
        process.terminate()
        assert process.wait(120) == 0


class Chaos:
    """Sends the requests, and breaks things in between."""

    def __init__(self, fleet: FakeFleet, addresses: tuple[str, str, str], session: aiohttp.ClientSession) -> None:
        self.fleet, self.session = fleet, session
        self.gateway, _, self.call_url = addresses
        self.random = random.Random(20)
        # A generator of their own, so that disasters do not depend on the order of the clients.
        self.disasters = random.Random(20)
        self.seen: Counter[str] = Counter()
        self.removed: list[FakeWorker] = []
        self.hurt: set[FakeWorker] = set()
        self.lock = asyncio.Lock()

    async def run(self, requests: int) -> None:
        """Send requests from so many clients at once, with one disaster every fifty."""
        numbers = iter(range(requests))

        async def client() -> None:
            for number in numbers:
                if number % 50 == 49:
                    await self.disaster()
                await self.request(number)

        async with asyncio.TaskGroup() as group:
            for _ in range(CONCURRENCY):
                group.create_task(client())
        await self.heal()

    async def request(self, number: int) -> None:
        """Send one request, and leave early in some cases."""
        leave = self.random.choice(["at once", "mid-stream"]) if self.random.random() < ABORTED else ""
        body = {
            "prompt": self.random.choice(SYSTEM_PROMPTS) + f"Question {number}: {self.random.random()}. " * 4,
            # A client that leaves in the middle leaves an engine that is not done.
            "max_tokens": 400 if leave == "mid-stream" else 9,
            "stream": self.random.random() < 0.9 or leave == "mid-stream",
            "stream_options": {"include_usage": True},
        }
        headers = {"x-session-id": f"s{number % 200}"} if number % 2 else {}
        headers["Content-Type"] = "application/json"
        asked = self.session.post(f"{self.gateway}/v1/completions", data=json.dumps(body), headers=headers)
        try:
            async with asyncio.timeout(0.002 if leave == "at once" else None):
                async with asked as answer:
                    if leave == "mid-stream" and answer.ok:
                        await answer.content.readany()
                        answer.close()
                        self.seen["left mid-stream"] += 1
                        return
                    await answer.read()
                    assert not answer.ok or "x-cachelb-worker" in answer.headers
                    self.seen[str(answer.status)] += 1
        except TimeoutError:
            self.seen["left at once"] += 1
        except aiohttp.ClientPayloadError:
            self.seen["torn"] += 1
        except aiohttp.ClientConnectionError:
            self.seen["disconnected"] += 1

    async def disaster(self) -> None:
        """Take a worker away in one of the ways in which workers go, or bring all of them back."""
        async with self.lock:
            worker = self.disasters.choice(self.fleet.workers)
            what = self.disasters.choice(["flap", "down", "restart", "replace", "drain", "heal"])
            if len(self.hurt) > WORKERS // 3:
                what = "heal"
            self.seen[what] += 1
            match what:
                case "flap":
                    self.hurt.add(worker)
                    await self.admin("set_ready", worker.url, False)
                case "down":
                    self.hurt.add(worker)
                    await asyncio.to_thread(worker.fail, "refuse")
                case "restart":
                    await asyncio.to_thread(worker.stop)
                    await asyncio.to_thread(worker.start, restart=True)
                    await self.admin("load_sink.reset_cache", worker.url)
                case "replace" | "drain":
                    new = await asyncio.to_thread(self.fleet.add_worker)
                    await self.admin("add_worker", new.url)
                    await self.admin("remove_worker", worker.url, drain=what == "drain")
                    self.removed.append(worker)
                    self.hurt.discard(worker)
                    await asyncio.to_thread(self.fleet.remove_worker, worker)
                case _:
                    await self.heal()

    async def heal(self) -> None:
        """Let every worker be there and ready."""
        self.hurt.clear()
        for worker in self.fleet.workers:
            await asyncio.to_thread(worker.heal)
            await self.admin("set_ready", worker.url, True)

    async def admin(self, call: str, *arguments: object, **options: object) -> Any:
        """Call a method of the gateway's router."""
        asked = {"call": call, "arguments": arguments, "options": options}
        async with self.session.post(self.call_url, json=asked) as answer:
            assert answer.ok, call
            return await answer.json()

    async def settled(self) -> dict[str, Any]:
        """Return the report once nothing is under way any more."""
        async with asyncio.timeout(120):
            while True:
                report: dict[str, Any] = await self.admin("report")
                if not report["open_requests"] and not report["open_in_gateway"]:
                    return report


async def cause_chaos(
    fleet: FakeFleet, gateway: tuple[str, str, str], requests: int
) -> tuple[Chaos, dict[str, Any], dict[str, Any]]:
    """Return what was seen, and the reports after the warm-up and at the end."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        chaos = Chaos(fleet, gateway, session)
        await chaos.run(requests // 4)
        warm = await chaos.settled()
        await chaos.run(requests - requests // 4)
        end = await chaos.settled()
        async with session.get(f"{gateway[1]}/metrics") as page:
            end["page"] = await page.text()
        return chaos, warm, end


@pytest.mark.parametrize("requests", [3_000, pytest.param(50_000, marks=pytest.mark.long)])
def test_books_balance_and_memory_is_flat_after_chaos(requests: int) -> None:
    with (
        FakeFleet(WORKERS, seed=3, time_scale=0.05, stream_interval=4, kv_blocks=4096) as fleet,
        gateway_process(fleet.urls) as gateway,
    ):
        fleet.set_rates(refuse=0.2, die=0.05, status={429: 0.01, 500: 0.01})
        chaos, warm, end = asyncio.run(cause_chaos(fleet, gateway, requests))
        # An engine notices that a client left after the gateway has ended its booking.
        wait_until(lambda: not any(worker.counts.open for worker in (*fleet.workers, *chaos.removed)))
        counts = [worker.counts for worker in (*fleet.workers, *chaos.removed)]
        urls = set(fleet.urls)
    for report in (warm, end):
        assert set(report["loads"].values()) == {0}
        assert report["pending_prefill_tokens"] == report["decode_blocks"] == 0
        assert set(report["series"]) == set(report["loads"]) == set(report["keys"])
        assert sum(report["endings"].values()) == report["decisions"]
    assert end["crashes"] == end["panicked"] == 0
    assert set(end["keys"]) == urls
    assert set(re.findall(r'worker="([^"]+)"', end["page"])) == urls
    assert end["memory_bytes"] < 3 << 20
    assert end["resident_bytes"] - warm["resident_bytes"] < 12 << 20

    # All of it happened, and in the measure that was planned.
    faults = sum((count.faults for count in counts), Counter[str]())
    assert faults["refuse"] > 0.15 * requests
    assert faults["die"] > 0.03 * requests
    assert min(faults["429"], faults["500"]) > 0
    seen = chaos.seen
    assert seen["left at once"] + seen["left mid-stream"] > 0.6 * ABORTED * requests
    assert seen["torn"] > 0.015 * requests
    disasters = ("flap", "down", "restart", "replace", "drain", "heal")
    assert all(seen[what] >= max(1, requests // 4000) for what in disasters)
    assert sum(count.aborted for count in counts) > 0
    endings = end["endings"]
    assert all(endings[kind] > 0 for kind in ("completed", "backpressure", "failed", "cancelled"))
    assert endings["abandoned"] == endings["expired"] == 0
    assert seen["disconnected"] == 0
    # Retries hide what does not have to be seen.
    assert seen["200"] > 0.8 * requests
    assert seen["502"] + seen["503"] < 0.05 * requests
