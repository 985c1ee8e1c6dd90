"""Cases of production-stack's router with cachelb in it: once for a stand-in of it, once for the real one."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

import aiohttp
from tests.gateways import serve_asgi
from tests.http_client import chat, complete, connect
from tests.waiting import wait_until

from cachelb.integrations.production_stack import CachelbRouter
from cachelb_fakes import FakeFleet

Make = Callable[..., contextlib.AbstractContextManager[tuple[Any, CachelbRouter]]]

PROMPT = "The quick brown fox jumps over the lazy dog. " * 20


def begin(url: str, **fields: Any) -> HTTPConnection:
    """Send a request and leave the answer unread."""
    connection = connect(url)
    body = {"model": "m", "prompt": PROMPT, "stream": True, "max_tokens": 9} | fields
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    return connection


class Cases:
    """The tests; a subclass has a fixture `make`, which builds an application on engines, with cachelb in it."""

    @contextlib.contextmanager
    def serving(self, make: Make, workers: int, **options: Any) -> Iterator[tuple[FakeFleet, CachelbRouter, str]]:
        with (
            FakeFleet(workers, models=["m"], seed=1) as fleet,
            make(fleet.urls, **options) as (app, logic),
            serve_asgi(app) as url,
        ):
            yield fleet, logic, url

    @staticmethod
    def idle(logic: CachelbRouter) -> dict[str, int]:
        wait_until(lambda: logic.router.stats().open_requests == 0)
        assert set(logic.router.loads().values()) <= {0}
        return {name: count for name, count in logic.router.stats().endings.items() if count}

    def test_conversations_stay_where_their_prompt_is(self, make: Make) -> None:
        with self.serving(make, 3, policy="cache-aware") as (fleet, logic, url):
            homes = []
            for number in [*range(6), *range(6)]:
                before = [worker.counts.finished for worker in fleet.workers]
                answer = chat(url, f"{number}{PROMPT}", model="m", max_tokens=2)
                assert answer.status == 200
                after = [worker.counts.finished for worker in fleet.workers]
                homes.append([b - a for a, b in zip(before, after, strict=True)].index(1))
                self.idle(logic)
            assert homes[:6] == homes[6:]
            assert Counter(homes[:6]) == {0: 2, 1: 2, 2: 2}
            assert self.idle(logic) == {"completed": 12}
            told = [record.cached_tokens for record in logic.router.records.recent(12)]
            assert told[:6] == [0] * 6
            assert min(count or 0 for count in told[6:]) > 200
            assert logic.fallbacks.total() == 0

    def test_stream_is_booked_until_its_end(self, make: Make) -> None:
        with self.serving(make, 1) as (fleet, logic, url):
            fleet.workers[0].fail("stall", times=1, after_chunks=2)
            with closing(begin(url)) as connection:
                response = connection.getresponse()
                response.readline()
                assert logic.router.stats().open_requests == 1
                fleet.release()
                assert b"[DONE]" in response.read()
            assert self.idle(logic) == {"completed": 1}

    def test_failover_goes_to_another_engine(self, make: Make) -> None:
        with self.serving(make, 3, failover=2) as (fleet, logic, url):
            complete(url, PROMPT, model="m", max_tokens=1)
            home = next(worker for worker in fleet.workers if worker.counts.finished)
            home.fail("reset", times=1)
            assert complete(url, PROMPT, model="m", max_tokens=1).status == 200
            assert home.counts.finished == 1
            assert self.idle(logic) == {"completed": 2, "failed": 1}

    def test_request_that_no_engine_answers_leaves_nothing_booked(self, make: Make) -> None:
        with self.serving(make, 2, failover=1) as (fleet, logic, url):
            fleet.fail("reset")
            assert complete(url, PROMPT, model="m").status == 500
            assert self.idle(logic) == {"failed": 2}

    def test_error_of_the_engine_is_counted_by_its_kind(self, make: Make) -> None:
        with self.serving(make, 1) as (fleet, logic, url):
            for status in (400, 503, 500):
                fleet.fail("status", times=1, status=status)
                assert complete(url, PROMPT, model="m").status == status
            assert self.idle(logic) == {"client": 1, "backpressure": 1, "failed": 1}

    def test_stream_that_breaks_off_failed(self, make: Make) -> None:
        with self.serving(make, 1) as (fleet, logic, url):
            fleet.workers[0].fail("die", times=1, after_chunks=2)
            with contextlib.suppress(Exception), closing(begin(url)) as connection:
                connection.getresponse().read()
            assert self.idle(logic) == {"failed": 1}

    def test_client_that_leaves_cancels(self, make: Make) -> None:
        with self.serving(make, 1) as (fleet, logic, url):
            worker = fleet.workers[0]
            worker.fail("stall", times=1, after_chunks=2)
            connection = begin(url)
            response = connection.getresponse()
            response.readline()
            response.close()
            connection.close()
            assert self.idle(logic) == {"cancelled": 1}
            wait_until(lambda: worker._replica.counts.aborted == 1)

    def test_requests_without_a_prompt_are_routed_by_load(self, make: Make) -> None:
        with self.serving(make, 1) as (_, logic, url):
            complete(url, {"not": "a prompt"}, model="m")
            self.idle(logic)
            assert logic.router.stats().bodies.kinds == {"unknown": 1}
            assert complete(url, PROMPT, model="other").status == 404
            assert sum(logic.router.stats().decisions.values()) == 1

    def test_session_follows_the_configured_key(self, make: Make) -> None:
        with self.serving(make, 3, policy="session", session_key="x-talk") as (fleet, logic, url):
            for number in range(6):
                complete(url, f"{number}", {"x-talk": "one"}, model="m", max_tokens=1)
                self.idle(logic)
            assert sorted(worker.counts.finished for worker in fleet.workers) == [0, 0, 6]

    def test_nothing_stays_booked_after_a_storm(self, make: Make) -> None:
        async def client(session: aiohttp.ClientSession, url: str, numbers: Any) -> None:
            for number in numbers:
                body = {"model": "m", "prompt": f"{number % 7}{PROMPT}", "max_tokens": 4, "stream": number % 3 > 0}
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.post(f"{url}/v1/completions", json=body) as answer:
                        await (answer.content.readany() if number % 4 == 0 else answer.read())

        async def run(url: str) -> None:
            numbers = iter(range(160))
            async with aiohttp.ClientSession() as session:
                await asyncio.gather(*(client(session, url, numbers) for _ in range(16)))

        with self.serving(make, 4, failover=1) as (fleet, logic, url):
            fleet.set_rates(refuse=0.1, die=0.1, status={500: 0.05})
            asyncio.run(run(url))
            endings = self.idle(logic)
            assert min(endings["completed"], endings["failed"]) > 10
            assert endings.get("abandoned", 0) == 0
            assert sum(endings.values()) == sum(logic.router.stats().decisions.values())
            logic.router.validate()
