"""Which exceptions count against a worker, and how a worker rests that asked for it."""

from __future__ import annotations

import asyncio
import http.client
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import httpx
import openai
import pytest
import requests
import urllib3
from tests.support_gateways import endings

import cachelb
from cachelb.answers import retry_after
from cachelb.testing import ManualClock

REQUEST = httpx.Request("POST", "http://gpu0")


def answered(status: int, **headers: str) -> httpx.HTTPStatusError:
    return httpx.HTTPStatusError("no", request=REQUEST, response=httpx.Response(status, headers=headers))


def made(name: str, module: str, base: type[Exception] = Exception, **attributes: Any) -> Exception:
    """Make an exception of a library that need not be installed."""
    parent = type(name, (base,), {"__module__": module})
    error: Exception = type("Special", (parent,), {"__module__": "mine", **attributes})()
    return error


def raised(error: Exception, **linked: Exception) -> Exception:
    for name, other in linked.items():
        setattr(error, f"__{name}__", other)
    return error


class HostileError(Exception):
    @property
    def status_code(self) -> int:
        raise RuntimeError("no status")

    response = status_code


def raising(error: BaseException) -> Iterator[bytes]:
    yield b"a"
    raise error


def grpc_error(name: str) -> Exception:
    return made("RpcError", "grpc", code=lambda _self: type("StatusCode", (), {"name": name}))


EXCEPTIONS = [
    (KeyError("mine"), "cancelled"),
    (ValueError("mine"), "cancelled"),
    (RuntimeError("mine"), "cancelled"),
    (AssertionError(), "cancelled"),
    (HostileError(), "cancelled"),
    (raised(KeyError("mine"), context=ConnectionResetError()), "cancelled"),
    (asyncio.CancelledError(), "cancelled"),
    (KeyboardInterrupt(), "cancelled"),
    (httpx.StreamConsumed(), "cancelled"),
    (ExceptionGroup("both", [KeyError(), ValueError()]), "cancelled"),
    (ConnectionRefusedError(), "failed"),
    (TimeoutError(), "failed"),
    (OSError("unreachable"), "failed"),
    (asyncio.IncompleteReadError(b"", 5), "failed"),
    (http.client.IncompleteRead(b""), "failed"),
    (httpx.ConnectError("no"), "failed"),
    (httpx.ReadTimeout("no"), "failed"),
    (httpx.RemoteProtocolError("cut"), "failed"),
    (aiohttp.ServerDisconnectedError(), "failed"),
    (aiohttp.ClientPayloadError(), "failed"),
    (made("HTTPError", "urllib3.exceptions"), "failed"),
    (made("APIConnectionError", "openai"), "failed"),
    (grpc_error("UNAVAILABLE"), "failed"),
    (grpc_error("CANCELLED"), "cancelled"),
    (grpc_error("RESOURCE_EXHAUSTED"), "backpressure"),
    (grpc_error("INVALID_ARGUMENT"), "client"),
    (raised(RuntimeError("upstream"), cause=httpx.ConnectError("no")), "failed"),
    (ExceptionGroup("both", [KeyError(), ConnectionResetError()]), "failed"),
    (answered(500), "failed"),
    (answered(404), "client"),
    (answered(429), "backpressure"),
    (made("Mine", "mine", status_code=502), "failed"),
    (made("Mine", "mine", status=503), "backpressure"),
    (made("Mine", "mine", status_code="502"), "cancelled"),
    (made("Mine", "mine", status=True), "cancelled"),
    (999, "failed"),
]


def fail(decision: Any, error: BaseException, how: str) -> None:
    """Let an exception end a decision."""

    async def stream() -> Any:
        for item in raising(error):
            yield item

    async def consume() -> None:
        async for _ in decision.track(stream()):
            pass

    if how.endswith("with"):
        with pytest.raises(type(error)), decision:
            raise error
    else:
        with pytest.raises(type(error)):
            asyncio.run(consume()) if how == "track" else list(decision.track_sync(raising(error)))


@pytest.mark.parametrize(("error", "outcome"), EXCEPTIONS, ids=[repr(error)[:40] for error, _ in EXCEPTIONS])
@pytest.mark.parametrize("how", ["on_error", "with", "track", "track_sync", "pair on_error", "pair with"])
def test_only_transports_and_statuses_count_against_a_worker(error: Any, outcome: str, how: str) -> None:
    router = cachelb.Router(["a"], seed=1)
    decision: Any = router.select_pair(by_load=True) if how.startswith("pair") else router.select_worker(by_load=True)
    if how.endswith("on_error") or error == 999:  # a status that HTTP does not have
        assert decision.on_error(error) == outcome
    else:
        fail(decision, error, how)
    assert endings(router) == {outcome: 1}


def test_an_error_of_the_callers_own_code_counts_no_failure_of_a_worker() -> None:
    router = cachelb.Router(["a", "b"], seed=1)
    for _ in range(12):
        with pytest.raises(KeyError), router.select_worker(by_load=True):
            raise KeyError("mine")
    assert [row.state for row in router.stats().workers] == ["ready", "ready"]
    assert endings(router) == {"cancelled": 12}
    for _ in range(12):
        with pytest.raises(ConnectionError), router.select_worker(among=["a"], by_load=True):
            raise ConnectionError
    assert [row.state for row in router.stats().workers] == ["failing", "ready"]


class Door:
    """A port where connections are refused, or closed unanswered."""

    def __init__(self) -> None:
        self._closing = socket.create_server(("127.0.0.1", 0))
        with socket.create_server(("127.0.0.1", 0)) as gone:
            self.refusing = f"http://localhost:{gone.getsockname()[1]}"
        self.closing = f"http://127.0.0.1:{self._closing.getsockname()[1]}"
        threading.Thread(target=self._close_each, daemon=True).start()

    def _close_each(self) -> None:
        while True:
            connection, _ = self._closing.accept()
            with connection:
                connection.recv(1 << 16)


async def get_by_aiohttp(url: str) -> None:
    async with aiohttp.ClientSession() as client, client.get(url):
        pass


async def get_by_httpx(url: str) -> None:
    async with httpx.AsyncClient() as client:
        await client.get(url)


def ask_by_openai(url: str) -> None:
    with openai.OpenAI(base_url=url, api_key="none", max_retries=1) as client:
        client.completions.create(model="m", prompt="p")


CLIENTS: dict[str, Callable[[str], object]] = {
    "aiohttp": lambda url: asyncio.run(get_by_aiohttp(url)),
    "httpx": httpx.get,
    "httpx async": lambda url: asyncio.run(get_by_httpx(url)),
    "openai": ask_by_openai,
    "requests": requests.get,
    "urllib": urllib.request.urlopen,
    "urllib3": lambda url: urllib3.request("GET", url, retries=0),
}


@pytest.fixture(scope="module")
def door() -> Door:
    return Door()


def failures_until_out(fail: Callable[[], object]) -> int:
    """Let requests to one of two workers fail until it is passed over."""
    router = cachelb.Router(["a", "b"], seed=1)
    count = 0
    while router.stats().workers[0].state == "ready":
        decision = router.select_worker(among=["a"], by_load=True)
        try:
            fail()
        except Exception as error:  # noqa: BLE001 - each client has its own
            decision.on_error(error)
        count += 1
    return count


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("how", ["refusing", "closing"])
def test_two_connections_without_an_answer_show_that_a_worker_is_gone(client: str, how: str, door: Door) -> None:
    assert failures_until_out(lambda: CLIENTS[client](getattr(door, how))) == 2


@pytest.mark.parametrize(
    "error",
    [
        answered(500),
        TimeoutError(),
        httpx.ReadTimeout("slow"),
        grpc_error("UNAVAILABLE"),
        raised(httpx.ReadTimeout("slow"), context=ConnectionRefusedError()),  # of another worker, tried before
    ],
    ids=repr,
)
def test_other_failures_count_one_each(error: Exception) -> None:
    def fail() -> None:
        raise error

    assert failures_until_out(fail) == 5


@pytest.mark.parametrize(("breaker_failures", "most"), [(1, 1), (2, 2), (3, 2), (4, 2), (5, 2), (9, 2)])
def test_a_lost_connection_is_half_of_any_limit(breaker_failures: int, most: int) -> None:
    clock = ManualClock()
    router = cachelb.Router(["a", "b"], seed=1, clock=clock, health=cachelb.Health(breaker_failures=breaker_failures))
    for left in reversed(range(most)):
        assert router.stats().workers[0].state == "ready"
        router.select_worker(among=["a"], by_load=True).on_error(ConnectionRefusedError())
        assert {router.select_worker(by_load=True).key for _ in range(8)} == ({"a", "b"} if left else {"b"})
    clock.advance(5.0)  # it restarted
    with router.select_worker(among=["a"], by_load=True) as decision:
        decision.on_first_token()
        router.select_worker(among=["a"], by_load=True).on_error(ConnectionRefusedError())
    assert router.stats().workers[0].state == ("failing" if most == 1 else "ready")


def test_a_connection_lost_after_the_first_token_or_without_a_breaker_counts_nothing() -> None:
    router = cachelb.Router(["a", "b"], seed=1)
    for _ in range(8):
        decision = router.select_worker(among=["a"], by_load=True)
        decision.on_first_token()
        decision.on_error(ConnectionResetError())
    without = cachelb.Router(["a", "b"], seed=1, health=cachelb.Health(breaker_failures=0))
    for _ in range(8):
        without.select_worker(among=["a"], by_load=True).on_error(ConnectionRefusedError())
    assert [row.state for each in (router, without) for row in each.stats().workers] == ["ready"] * 4


def test_a_with_block_of_a_pair_blames_the_worker_that_was_at_work() -> None:
    router: cachelb.Router[str] = cachelb.Router(
        seed=1, pairs=cachelb.Pairs(uncached_token_threshold=0), health=cachelb.Health(breaker_failures=1)
    )
    router.add_worker("p", role="prefill")
    router.add_worker("d", role="decode")
    with pytest.raises(ConnectionError), router.select_pair(tokens=range(64)):
        raise ConnectionError
    assert {row.key: row.state for row in router.stats().workers} == {"p": "failing", "d": "ready"}
    assert endings(router) == {"failed": 1, "cancelled": 1}


# --- backpressure ---


def test_one_429_is_a_rest_and_no_failure() -> None:
    clock = ManualClock()
    router = cachelb.Router(["a", "b"], seed=1, clock=clock)
    assert router.select_worker(among=["a"], by_load=True).on_error(429) == "backpressure"
    assert {row.key: row.state for row in router.stats().workers} == {"a": "pushing back", "b": "ready"}
    seen = {view.key: view.state for view in router.explain().candidates}
    assert seen == {"a": "pushing back", "b": "available"}
    clock.advance(0.6)
    assert router.stats().workers[0].state == "ready"


@pytest.mark.parametrize(
    ("told", "rests_s"),
    [({"retry_after_s": 7}, 7.0), ({"retry_after_s": 1e30}, 60.0), ({"retry_after_s": 0}, 0.5), ({}, 0.5)],
    ids=str,
)
@pytest.mark.parametrize("breaker_failures", [0, 5])
def test_a_worker_rests_as_long_as_it_asked(told: dict[str, float], rests_s: float, breaker_failures: int) -> None:
    clock = ManualClock()
    router = cachelb.Router(["a", "b"], seed=1, clock=clock, health=cachelb.Health(breaker_failures=breaker_failures))
    if breaker_failures == 0 and rests_s == 0.5:
        rests_s = 0.0  # without a breaker only what a worker asks for counts
    other = router.select_worker(among=["a"], by_load=True)
    router.select_worker(among=["a"], by_load=True).on_error(503, **told)
    other.on_first_token()  # sent before: shows nothing of the present
    if rests_s:
        clock.advance(rests_s - 0.01)
        assert {router.select_worker(by_load=True).key for _ in range(20)} == {"b"}
        assert router.select_worker(among=["a"], by_load=True).key == "a", "no other worker is there"
    clock.advance(0.02)
    assert router.stats().workers[0].state == "ready"


@pytest.mark.parametrize("wrong", [-1, float("nan"), "soon", True])
def test_a_rest_that_is_no_number_of_seconds_is_refused(wrong: Any) -> None:
    decision = cachelb.Router(["a"]).select_worker(by_load=True)
    with pytest.raises((TypeError, ValueError), match="retry_after_s"):
        decision.on_error(429, retry_after_s=wrong)
    assert decision.is_open


@pytest.mark.parametrize("how", ["on_error", "with", "track_sync"])
def test_the_rest_is_read_from_the_answer_of_an_exception(how: str) -> None:
    clock = ManualClock()
    router = cachelb.Router(["a", "b"], seed=1, clock=clock)
    error, decision = answered(429, **{"Retry-After": "9"}), router.select_worker(among=["a"], by_load=True)
    if how == "on_error":
        decision.on_error(error)
    else:
        fail(decision, error, how)
    clock.advance(8.9)
    assert router.stats().workers[0].state == "pushing back"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "3"}, 3.0),
        ({"Retry-After": " 0.5 "}, 0.5),
        (httpx.Headers({"RETRY-AFTER": "3"}), 3.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "1e30"}, None),
        ({"retry-after": "9" * 40}, None),
        ({"retry-after": "Wed, 99 Oct 99999 07:28:00 GMT"}, None),
        ({"retry-after": 3}, None),
        ({}, None),
        (None, None),
    ],
)
def test_retry_after_is_read_or_left_alone(headers: Any, seconds: float | None) -> None:
    assert retry_after(headers) == seconds
