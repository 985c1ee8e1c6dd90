"""Workers that hang, die and restart, as processes of their own, behind the library and behind the endpoint picker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import aiohttp
import pytest
from tests.models.ext_proc_client import Service, serve
from tests.programs import running
from tests.waiting import until, wait_until

from cachelb import Router
from cachelb.sources import MetricsSource

PATIENCE_S = 15.0
"""How long clients wait for a first byte. Workers that are well answer in milliseconds, and on a starved machine within
a quarter of this, beyond which the time would be no sign of a hang."""

ROUND = 8
JSON = {"content-type": "application/json"}


class Worker:
    """A fake engine in a process of its own, which starts again at the same port."""

    def __init__(self) -> None:
        self._start("0")

    def _start(self, port: str) -> None:
        command = [sys.executable, "-m", "cachelb.testing.fleet", "--workers", "1", "--port", port]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()

    def hang(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def restart(self) -> None:
        self.kill()
        self._start(self.url.rpartition(":")[2])


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    found = [Worker(), Worker()]
    yield found
    for worker in found:
        worker.kill()


def states(router: Router[str]) -> list[str]:
    return [row.state for row in router.stats().workers]


Ask = Callable[[bytes], Awaitable[str]]
"""Sends a request, and returns the worker that answered it; raises if none did in time."""


def body_of(prompt: str) -> bytes:
    return json.dumps({"prompt": prompt, "max_tokens": 4, "stream": True}).encode()


@contextlib.asynccontextmanager
async def through_the_library(router: Router[str]) -> AsyncIterator[Ask]:
    async with aiohttp.ClientSession() as client:

        async def ask(body: bytes) -> str:
            decision = router.select_worker(body=body, path="/v1/completions")

            async def parts() -> AsyncIterator[bytes]:
                async with client.post(f"{decision.key}/v1/completions", data=body, headers=JSON) as answer:
                    answer.raise_for_status()
                    async for part in answer.content.iter_any():
                        yield part

            async with asyncio.timeout(PATIENCE_S):
                async for _ in decision.track(parts()):
                    pass
            return decision.key

        yield ask


@contextlib.asynccontextmanager
async def through_the_picker(router: Router[str]) -> AsyncIterator[Ask]:
    async with serve(router) as service, aiohttp.ClientSession() as client:

        async def forward(stream: Any, body: bytes) -> str:
            """Do what a proxy does with one request."""
            picked = await stream.request(body, JSON)
            url = f"http://{picked.endpoints[0]}"
            try:
                async with client.post(f"{url}/v1/completions", data=picked.body, headers=JSON) as answer:
                    await stream.answer_headers(answer.status, kind=answer.content_type)
                    await stream.answer_body(await answer.read())
                    await stream.finish()
            except aiohttp.ClientConnectorError:
                await stream.answer_headers(503, details="upstream_reset_before_response_started", end=True)
                await stream.finish()
                raise
            return url

        async def ask(body: bytes) -> str:
            stream = Service.stream(service)
            try:
                async with asyncio.timeout(PATIENCE_S):
                    return await forward(stream, body)
            except BaseException:
                stream.call.cancel()  # the client left
                raise

        yield ask


HOSTS = pytest.mark.parametrize("host", [through_the_library, through_the_picker], ids=["library", "picker"])


async def rounds(ask: Ask, count: int, name: str = "") -> list[Counter[str]]:
    """Let eight clients ask at a time; return by round which workers answered, and how many clients gave up."""

    async def one(prompt: str) -> str:
        try:
            return await ask(body_of(prompt))
        except TimeoutError:
            return "gave up"
        except aiohttp.ClientError:
            return "failed"

    found = []
    for number in range(count):
        prompts = [f"{name} {number} {client} " * 40 for client in range(ROUND)]
        found.append(Counter(await asyncio.gather(*map(one, prompts))))
    return found


def attached(router: Router[str], workers: list[Worker]) -> MetricsSource:
    source = MetricsSource(interval_s=0.05)
    router.attach(source)
    wait_until(lambda: sum(polls.readable is True for polls in source.stats().workers.values()) == len(workers))
    return source


@HOSTS
@pytest.mark.parametrize("is_polled", [True, False], ids=["polled", "not polled"])
def test_a_stopped_worker_costs_the_clients_of_one_round(workers: list[Worker], host: Any, is_polled: bool) -> None:
    async def run() -> None:
        async with host(router) as ask:
            stopped.hang()
            first, *others = await rounds(ask, 4)
            assert first["gave up"] <= ROUND / 2
            assert [round_ == {well.url: ROUND} for round_ in others] == [True] * 3, others
            assert states(router) == ["unreachable", "ready"]
            stopped.go_on()
            if is_polled:
                await until(lambda: states(router)[0] == "ready")
                assert {key for round_ in await rounds(ask, 2, "back") for key in round_} == {stopped.url, well.url}

    stopped, well = workers
    with Router([worker.url for worker in workers], seed=1) as router:
        if is_polled:
            attached(router, workers)
        asyncio.run(run())


@HOSTS
def test_a_killed_worker_is_passed_over_and_comes_back_without_what_it_held(workers: list[Worker], host: Any) -> None:
    async def run() -> None:
        async with host(router) as ask:
            await rounds(ask, 1, "warm")
            assert router.stats().workers[0].index_blocks
            killed.kill()
            await until(lambda: states(router)[0] == "unreachable")
            assert await rounds(ask, 3) == [{well.url: ROUND}] * 3
            killed.restart()
            await until(lambda: states(router)[0] == "ready")
            await until(lambda: not router.stats().workers[0].index_blocks)
            assert router.stats().workers[1].index_blocks
            assert {key for round_ in await rounds(ask, 2, "back") for key in round_} == {killed.url, well.url}

    killed, well = workers
    with Router([worker.url for worker in workers], seed=1) as router:
        attached(router, workers)
        asyncio.run(run())


@HOSTS
def test_a_quick_restart_is_seen_by_the_next_page(workers: list[Worker], host: Any) -> None:
    async def run() -> None:
        async with host(router) as ask:
            await rounds(ask, 1, "warm")
            assert router.stats().workers[0].index_blocks
            workers[0].restart()
            await until(lambda: not router.stats().workers[0].index_blocks)
            assert router.stats().workers[1].index_blocks
            await until(lambda: states(router) == ["ready", "ready"])

    with Router([worker.url for worker in workers], seed=1) as router:
        attached(router, workers)
        asyncio.run(run())


SERVER = """
import sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

status, delay_s, page = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3].encode()

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        threading.Event().wait(delay_s)
        self.answer(status, page)

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(200, b"{}")

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments): ...

server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(f"http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
"""
"""An engine that answers every prompt at once, and its metrics page as its arguments say: status, seconds, text."""

PAGE = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"


@HOSTS
@pytest.mark.parametrize(
    ("page", "timeout_s", "state"),
    [
        (("200", "3600", PAGE), 6.0, "unreachable"),
        (("503", "0", PAGE), 6.0, "unreachable"),
        (("200", "3", PAGE), 6.0, "ready"),
        (("200", "3", PAGE), 0.5, "ready"),
        (("200", "0", ""), 6.0, "ready"),
        (("200", "0", "some_metric 1\n"), 6.0, "ready"),
        (("404", "0", ""), 6.0, "ready"),
    ],
    ids=["hangs", "503", "slow", "slower than its timeout", "empty", "unknown", "404"],
)
def test_a_page_shows_whether_its_worker_is_there(
    host: Any, page: tuple[str, str, str], timeout_s: float, state: str
) -> None:
    async def run() -> None:
        async with host(router) as ask:
            asked = sum(await rounds(ask, 2), Counter())
            expected = {urls[1]} if state == "unreachable" else set(urls)
            assert set(asked) == expected, asked

    with contextlib.ExitStack() as stack:
        arguments = (page, ("200", "0", PAGE))
        found = [stack.enter_context(running("-c", SERVER, *each)) for each in arguments]
        urls = [output.readline().strip() for _, output in found]
        router = stack.enter_context(Router(urls, seed=1))
        source = MetricsSource(interval_s=0.05, timeout_s=timeout_s)
        router.attach(source)
        wait_until(lambda: source.stats().workers and source.stats().workers[urls[0]].polls > 4)
        assert states(router) == [state, "ready"]
        asyncio.run(run())
