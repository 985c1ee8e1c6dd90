"""Workers that hang, die and restart, as processes of their own, behind each host of the library."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any

import aiohttp
import pytest
from tests.gateways import serving
from tests.library.integrations.litellm_host import deployment, hosted
from tests.models.ext_proc_client import Service, serve
from tests.programs import running
from tests.waiting import DEADLINE_S, until, wait_until

from cachelb import Health, Router
from cachelb.integrations.litellm import CachelbCallback
from cachelb.sources import MetricsSource, polled_run, restarts

PATIENCE_S = 30.0
"""After so long by the routers' clock clients give up: less than the pause before an unreachable worker is tried."""

ROUND = 8
JSON = {"content-type": "application/json"}
REFUSED = "upstream_reset_before_response_started{remote_connection_failure|delayed_connect_error:_Connection_refused}"
"""How Envoy shows a connection that was refused."""


class Clock:
    """The time, which a test may set forward."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead_s


class Worker:
    """A fake engine in a process of its own, which starts again at the same port."""

    def __init__(self) -> None:
        self._start("0")

    def _start(self, port: str) -> None:
        command = [sys.executable, "-m", "cachelb_fakes", "--workers", "1", "--port", port]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.hangs = False
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()

    def hang(self) -> None:
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)  # until then it may answer
        self.hangs = True

    def go_on(self) -> None:
        self.hangs = False
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def restart(self) -> None:
        self.kill()
        self._start(self.url.rpartition(":")[2])

    def mend(self) -> None:
        """Be well again, whatever happened."""
        if self._process.poll() is None:
            self.go_on()
        else:
            self.restart()


@pytest.fixture(scope="module")
def pair() -> Iterator[list[Worker]]:
    found = [Worker(), Worker()]
    yield found
    for worker in found:
        worker.kill()


@pytest.fixture
def workers(pair: list[Worker]) -> Iterator[list[Worker]]:
    yield pair
    for worker in pair:
        worker.mend()


def states(router: Router[str]) -> list[str]:
    return [row.state for row in router.stats().workers]


Ask = Callable[[bytes], Awaitable[str]]
"""Sends a request, and returns the worker that answered it; raises if none did in time."""

numbers = itertools.count()


def body_of(prompt: str) -> bytes:
    return json.dumps({"prompt": prompt, "max_tokens": 4, "stream": True}).encode()


class Host:
    """A router with something that sends clients' requests to its choice."""

    def __init__(self, router: Router[str], clock: Clock, ask: Ask) -> None:
        self.router, self._clock, self._ask = router, clock, ask
        self.workers: Sequence[Worker] = ()

    async def rounds(self, count: int) -> list[Counter[str]]:
        """Let eight clients ask at a time; return by round which workers answered, and how many clients gave up."""
        return [await self._round() for _ in range(count)]

    async def _round(self) -> Counter[str]:
        async def one(prompt: str) -> str:
            try:
                return await self._ask(body_of(prompt))
            except asyncio.CancelledError:
                return "gave up"
            except Exception:  # noqa: BLE001 - each host has its own
                return "failed"

        waiting = tasks = {asyncio.create_task(one(f"{next(numbers)} " * 40)) for _ in range(ROUND)}
        async with asyncio.timeout(DEADLINE_S):
            while waiting and not self._are_at_hung_workers(len(waiting)):
                _, waiting = await asyncio.wait(waiting, timeout=0.01, return_when=asyncio.FIRST_COMPLETED)
            if waiting:
                self._clock.ahead_s += PATIENCE_S
                for task in waiting:
                    task.cancel()
            found = Counter([await task for task in tasks])
        await until(lambda: not self.router.stats().open_requests)
        return found

    def _are_at_hung_workers(self, count: int) -> bool:
        """Whether so many requests are open, each at a worker that hangs: none of them will be answered."""
        hung = {worker.url for worker in self.workers if worker.hangs}
        opened = {row.key: row.inflight for row in self.router.stats().workers}
        return sum(opened.values()) == count == sum(opened[url] for url in hung)


@contextlib.asynccontextmanager
async def through_the_library(router: Router[str], clock: Clock) -> AsyncIterator[Host]:
    async with aiohttp.ClientSession() as client:

        async def ask(body: bytes) -> str:
            decision = router.select_worker(body=body, path="/v1/completions")

            async def parts() -> AsyncIterator[bytes]:
                async with client.post(f"{decision.key}/v1/completions", data=body, headers=JSON) as answer:
                    answer.raise_for_status()
                    async for part in answer.content.iter_any():
                        yield part

            async for _ in decision.track(parts()):
                pass
            return decision.key

        yield Host(router, clock, ask)


@contextlib.asynccontextmanager
async def through_the_picker(router: Router[str], clock: Clock) -> AsyncIterator[Host]:
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
                await stream.answer_headers(503, details=REFUSED, end=True)
                await stream.finish()
                raise
            return url

        async def ask(body: bytes) -> str:
            stream = Service.stream(service)
            try:
                return await forward(stream, body)
            except BaseException:
                stream.call.cancel()  # the client left
                raise

        yield Host(router, clock, ask)


@contextlib.asynccontextmanager
async def through_serve(router: Router[str], clock: Clock) -> AsyncIterator[Host]:
    with serving(router, expose_headers=["x-cachelb-worker"]) as served:
        async with aiohttp.ClientSession() as client:

            async def ask(body: bytes) -> str:
                async with client.post(f"{served.url}/v1/completions", data=body, headers=JSON) as answer:
                    answer.raise_for_status()
                    await answer.read()
                    return answer.headers["x-cachelb-worker"]

            yield Host(router, clock, ask)


@contextlib.asynccontextmanager
async def through_litellm(router: Router[str], clock: Clock) -> AsyncIterator[Host]:
    """It has a router of its own, with the same workers."""
    callback = CachelbCallback(seed=1, clock=clock)
    async with hosted(callback, [deployment(url, url) for url in router.workers()]) as litellm:

        async def ask(body: bytes) -> str:
            said = [{"role": "user", "content": json.loads(body)["prompt"]}]
            answer = await litellm.acompletion(model="m", messages=said, max_tokens=4, stream=True)
            key = str(answer._hidden_params["model_id"])
            async for _ in answer:
                pass
            return key

        yield Host(callback.router, clock, ask)


WITH_A_ROUTER = {"library": through_the_library, "picker": through_the_picker, "serve": through_serve}
HOSTS = {**WITH_A_ROUTER, "litellm": through_litellm}
in_litellm = pytest.param("litellm", marks=pytest.mark.filterwarnings("ignore"))  # LiteLLM leaves sockets open
in_each_host = pytest.mark.parametrize("host", [*WITH_A_ROUTER, in_litellm])


def assert_lost(lost: list[int], most: int) -> None:
    """Check requests lost by round: half of a round's, and one for unlike workers; none once so many show the fault."""
    assert max(lost) <= ROUND / 2 + 1, lost
    assert not any(each for at, each in enumerate(lost) if sum(lost[:at]) >= most), lost


@contextlib.asynccontextmanager
async def behind(host: str, workers: list[Worker], clock: Clock, *, polled: bool = True) -> AsyncIterator[Host]:
    """A host in front of two workers that have answered, and whose pages are known."""
    with Router([worker.url for worker in workers], seed=1, clock=clock) as router:
        async with HOSTS[host](router, clock) as found:
            found.workers = workers
            await found.rounds(2)
            assert all(row.index_blocks for row in found.router.stats().workers)
            if polled:
                source = MetricsSource(interval_s=0.05, timeout_s=10.0)
                found.router.attach(source)
                await until(lambda: [polls.readable for polls in source.stats().workers.values()] == [True, True])
            try:
                yield found
            finally:
                if polled:
                    found.router.detach(source)


@pytest.mark.parametrize("polled", [True, False], ids=["polled", "not polled"])
@in_each_host
def test_a_stopped_worker_costs_the_clients_of_one_round(workers: list[Worker], host: str, polled: bool) -> None:
    stopped, well = workers

    async def run() -> None:
        clock = Clock()
        async with behind(host, workers, clock, polled=polled) as hosted:
            stopped.hang()
            rounds = await hosted.rounds(4)
            lost = [round_["gave up"] for round_ in rounds]
            assert_lost(lost, 2)
            assert all(round_[well.url] + round_["gave up"] == ROUND for round_ in rounds), rounds
            assert states(hosted.router) == ["unreachable", "ready"]
            endings = hosted.router.stats().endings
            assert (endings["cancelled"], endings["failed"]) == (sum(lost), 0), "clients that left"
            stopped.go_on()
            if not polled:
                clock.ahead_s += 2 * PATIENCE_S  # one request tries it now
            await until(lambda: not polled or states(hosted.router)[0] == "ready")
            assert {key for round_ in await hosted.rounds(2) for key in round_} == {stopped.url, well.url}
            assert states(hosted.router) == ["ready", "ready"]

    asyncio.run(run())


@in_each_host
def test_a_killed_worker_is_passed_over_and_comes_back_without_what_it_held(
    workers: list[Worker], host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed, well = workers
    monkeypatch.setattr(polled_run, "_LONGEST_BACKOFF_S", 0.2)
    monkeypatch.setattr(restarts, "_APART_S", 0.0)  # a fake engine may start twice within half a second

    async def run() -> None:
        async with behind(host, workers, Clock()) as hosted:
            rows = hosted.router.stats
            killed.kill()
            await until(lambda: states(hosted.router)[0] == "unreachable")
            assert await hosted.rounds(3) == [{well.url: ROUND}] * 3
            killed.restart()
            await until(lambda: states(hosted.router)[0] == "ready")
            await until(lambda: not rows().workers[0].index_blocks)
            assert rows().workers[1].index_blocks
            assert {key for round_ in await hosted.rounds(2) for key in round_} == {killed.url, well.url}
            killed.restart()  # and so quickly that no page is missed
            await until(lambda: not rows().workers[0].index_blocks)
            assert rows().workers[1].index_blocks
            await until(lambda: states(hosted.router) == ["ready", "ready"])

    asyncio.run(run())


@in_each_host
def test_a_killed_worker_is_passed_over_without_its_page(workers: list[Worker], host: str) -> None:
    killed, well = workers

    async def run() -> None:
        async with behind(host, workers, Clock(), polled=False) as hosted:
            killed.kill()
            rounds = await hosted.rounds(4)
            assert_lost([round_["failed"] for round_ in rounds], 2)
            assert host != "serve" or not any(round_["failed"] for round_ in rounds), "it tries the other one"
            assert all(round_[well.url] + round_["failed"] == ROUND for round_ in rounds), rounds
            assert states(hosted.router) == ["failing", "ready"]

    asyncio.run(run())


SERVER = """
import sys, threading
from tests.answering import answering

status, delay_s, page = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3].encode()

def answer(handler):
    if handler.command == "POST":
        handler.content()
        handler.reply(b"{}")
    else:
        threading.Event().wait(delay_s)
        handler.reply(page, status)

with answering(answer) as url:
    print(url, flush=True)
    threading.Event().wait()
"""
"""An engine that answers every prompt at once, and its metrics page by its arguments: status, seconds, text."""

PAGE = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
SLEEPS = 'vllm:engine_sleep_state{{engine="0",sleep_state="{}"}} 1\n'
PAGES = {
    "hangs": ("200", "3600", PAGE),
    "503": ("503", "0", PAGE),
    "slow": ("200", "3", PAGE),
    "empty": ("200", "0", ""),
    "unknown": ("200", "0", "some_metric 1\n"),
    "404": ("404", "0", ""),
    "sleeps": ("200", "0", PAGE + SLEEPS.format("discard_all")),
    "paused": ("200", "0", PAGE + SLEEPS.format("paused")),
    "awake": ("200", "0", PAGE + SLEEPS.format("awake")),
    "well": ("200", "0", PAGE),
}
PASSED_OVER = {"hangs": "unreachable", "503": "unreachable", "sleeps": "asleep", "paused": "asleep"}


@pytest.fixture(scope="module")
def polled() -> Iterator[list[Router[str]]]:
    """Routers whose workers have these pages, in this order; a page may take longer than one of them waits for it."""
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(running("-c", SERVER, *page)) for page in PAGES.values()]
        urls = [output.readline().strip() for _, output in found]
        routers, sources = [], []
        for timeout_s in (6.0, 0.5):
            routers.append(stack.enter_context(Router(urls, seed=1, health=Health(breaker_cooldown_s=600.0))))
            sources.append(MetricsSource(interval_s=0.05, timeout_s=timeout_s))
            routers[-1].attach(sources[-1])
        wait_until(lambda: all(len(source.stats().workers) == len(PAGES) for source in sources))
        wait_until(lambda: all(each.polls > 3 for source in sources for each in source.stats().workers.values()))
        yield routers


@pytest.mark.parametrize("host", WITH_A_ROUTER)
def test_a_page_shows_whether_its_worker_is_there(host: str, polled: list[Router[str]]) -> None:
    async def run(router: Router[str]) -> None:
        await until(lambda: states(router) == [PASSED_OVER.get(page, "ready") for page in PAGES])
        async with WITH_A_ROUTER[host](router, Clock()) as hosted:
            asked = sum(await hosted.rounds(4), Counter())
            assert set(asked) == {
                key for key, page in zip(router.keys(), PAGES, strict=True) if page not in PASSED_OVER
            }

    for router in polled:
        asyncio.run(run(router))
