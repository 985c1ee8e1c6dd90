"""cachelb in production-stack, of whose request path there is a stand-in here; `make test-hosts` runs the real one."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import subprocess
import sys
import types
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from tests.gateways import serve_asgi
from tests.http_client import JSON
from tests.library.integrations.production_stack_cases import PROMPT, Cases, Make

from cachelb import NoWorkerAvailable
from cachelb.integrations.production_stack import CachelbRouter, install


class OneOfEach(abc.ABCMeta):
    """Keeps a single instance of each class, as the metaclass of the host does."""

    instances: dict[type, Any] = {}  # noqa: RUF012 - as the host has it

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls not in cls.instances:
            cls.instances[cls] = super().__call__(*args, **kwargs)
        return cls.instances[cls]


class PrefixAwareRouter(metaclass=OneOfEach):
    """The used part of the host's class."""

    max_instance_failover_reroute_attempts: int

    def __init__(self) -> None:
        raise AssertionError("the host's own trie is not needed")

    def extract_session_id(self, request: Request, body: dict[str, Any]) -> str | None:
        key = self.session_key  # type: ignore[attr-defined]
        found: str | None = None if key is None else request.headers.get(key) or body.get(key)
        return found

    def _qps_routing(self, endpoints: list[Any], request_stats: dict[str, Any]) -> str:
        url: str = min(endpoints, key=lambda endpoint: request_stats.get(endpoint.url, 0)).url
        return url


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the stand-in where the host would be."""
    for name in ("vllm_router", "vllm_router.routers", "vllm_router.routers.routing_logic"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["vllm_router.routers.routing_logic"].PrefixAwareRouter = PrefixAwareRouter  # type: ignore[attr-defined]


async def route_general_request(request: Request) -> Response:
    """Do what the host does with a request, in its order."""
    state, body = request.app.state, await request.json()
    endpoints = [endpoint for endpoint in state.endpoints if body["model"] in endpoint.model_names]
    if not endpoints:
        return JSONResponse({"error": "no such model"}, 404)
    assert isinstance(state.router, PrefixAwareRouter)  # or it would not be given the body
    failed: set[str] = set()
    error: Exception | None = None
    for _ in range(state.router.max_instance_failover_reroute_attempts + 1):
        remaining = [endpoint for endpoint in endpoints if endpoint.url not in failed]
        url = await state.router.route_request(remaining, {}, {}, request, body)  # type: ignore[attr-defined]
        state.router.extract_session_id(request, body)
        parts = forward(state.client, url + request.url.path, await request.body())
        try:
            status = await anext(parts)
        except aiohttp.ClientError as caught:
            failed.add(url)
            error = caught
            continue
        return StreamingResponse(parts, status)
    assert error is not None
    raise error


async def forward(client: aiohttp.ClientSession, url: str, body: bytes) -> AsyncIterator[Any]:
    """Yield the status, then the parts of the answer."""
    async with client.post(url, data=body, headers=JSON) as answer:
        yield answer.status
        async for chunk in answer.content.iter_any():
            yield chunk


@contextlib.contextmanager
def make_app(
    urls: list[str], *, failover: int = 0, session_key: str | None = None, **options: Any
) -> Iterator[tuple[Any, CachelbRouter]]:
    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with aiohttp.ClientSession() as app.state.client:
            yield

    routes = [
        Route(path, route_general_request, methods=["POST"]) for path in ("/v1/completions", "/v1/chat/completions")
    ]
    app = Starlette(routes=routes, lifespan=lifespan)
    app.state.endpoints = [SimpleNamespace(url=url, model_names=["m"]) for url in urls]
    app.state.router = SimpleNamespace(max_instance_failover_reroute_attempts=failover, session_key=session_key)
    yield app, install(app, **{"seed": 1} | options)


class TestStandIn(Cases):
    @pytest.fixture
    def make(self) -> Make:
        return make_app


# --- the class ---


def endpoints(*urls: str) -> list[Any]:
    return [SimpleNamespace(url=url) for url in urls]


def request() -> Any:
    async def body() -> bytes:
        return b""

    return SimpleNamespace(scope={}, headers={}, url=SimpleNamespace(path="/v1/completions"), body=body)


async def route(logic: Any, offered: list[Any], asked: Any, body: dict[str, Any] | None = None) -> str:
    url: str = await logic.route_request(offered, {}, {"a": 2, "b": 1}, asked, body or {"prompt": PROMPT})
    return url


@pytest.mark.parametrize(
    ("error", "reason"),
    [(NoWorkerAvailable({"a": "not ready"}), "no-worker"), (RuntimeError("the prompt: secret"), "error")],
    ids=["nobody", "bug"],
)
def test_failure_falls_back_to_the_engine_with_the_fewest_requests(
    error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(**_asked: Any) -> None:
        raise error

    logic = CachelbRouter()
    monkeypatch.setattr(logic.router, "select_worker", broken)
    for _ in range(2):
        assert asyncio.run(route(logic, endpoints("a", "b"), request())) == "b"
    assert logic.fallbacks == {reason: 2}
    assert len(caplog.records) == (reason == "error")
    assert "secret" not in caplog.text


def test_engine_that_sleeps_stays_known_until_it_is_long_gone() -> None:
    now = [0.0]
    logic = CachelbRouter(seed=1, forget_after_s=100, clock=lambda: now[0])
    asyncio.run(route(logic, endpoints("a", "b", "c"), request()))
    for now[0] in (60.0, 90.0):
        asyncio.run(route(logic, endpoints("a", "b"), request()))
        assert logic.router.keys() == ["a", "b", "c"]
    now[0] = 130.0
    asyncio.run(route(logic, endpoints("a"), request()))
    assert logic.router.keys() == ["a", "b"]


def test_request_that_nothing_follows_is_abandoned_when_it_is_over() -> None:
    logic = CachelbRouter(seed=1)
    asked = request()
    asyncio.run(route(logic, endpoints("a", "b"), asked))
    assert logic.router.stats().open_requests == 1
    del asked
    assert logic.router.stats().endings["abandoned"] == 1


def test_two_routing_logics_do_not_share_an_instance() -> None:
    first, second = CachelbRouter(policy="random"), CachelbRouter(policy="round-robin")
    assert first is not second
    assert isinstance(first, PrefixAwareRouter)
    assert (first.router.policy.name, second.router.policy.name) == ("random", "round-robin")
    assert OneOfEach.instances == {}


def test_install_keeps_what_is_configured() -> None:
    with make_app([], failover=3, session_key="x-talk") as (app, logic):
        assert app.state.router is logic
    assert (logic.max_instance_failover_reroute_attempts, logic.session_key) == (3, "x-talk")
    with make_app([], session_key="x-talk") as (_, other):
        assert other.session_key == "x-talk"


def test_sources_stop_with_the_application() -> None:
    class Source:
        stopped = False

        def start(self, router: object) -> None:
            pass

        def stop(self) -> None:
            self.stopped = True

    source = Source()
    with make_app([]) as (app, logic):
        logic.router.attach(source)
        with serve_asgi(app):
            assert not source.stopped
    assert source.stopped


def test_missing_host_is_named_when_it_is_used() -> None:
    code = """
from cachelb.integrations.production_stack import CachelbRouter
try:
    CachelbRouter()
except ModuleNotFoundError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout.startswith("CachelbRouter needs production-stack's router: pip install 'vllm-router @ git+")
