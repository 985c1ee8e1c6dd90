"""The example gateways as real servers on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import uvicorn
from aiohttp import web
from examples import aiohttp_gateway, starlette_gateway

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.applications import Starlette

    from cachelb import Router


def _listener() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    listener.setblocking(False)
    return listener


@contextlib.contextmanager
def serve_asgi(app: Starlette) -> Iterator[str]:
    """Serve an ASGI application with uvicorn in a thread; yield its address."""
    listener = _listener()
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="on"))
    thread = threading.Thread(target=server.run, args=([listener],), name="gateway")
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def _starlette(router: Router[str], **options: Any) -> contextlib.AbstractContextManager[str]:
    return serve_asgi(starlette_gateway.make_app(router, **options))


@contextlib.contextmanager
def _aiohttp(router: Router[str], **options: Any) -> Iterator[str]:
    listener = _listener()
    loop = asyncio.new_event_loop()
    end = asyncio.Event()

    async def serve() -> None:
        runner = web.AppRunner(aiohttp_gateway.make_app(router, **options), handler_cancellation=True, access_log=None)
        await runner.setup()
        await web.SockSite(runner, listener).start()
        await end.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), name="gateway")
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()
        loop.close()
        listener.close()


GATEWAYS: dict[str, Callable[..., contextlib.AbstractContextManager[str]]] = {
    "starlette": _starlette,
    "aiohttp": _aiohttp,
}


def wait_until(condition: Callable[[], object], *, timeout_s: float = 120.0) -> None:
    """Wait for something that announces itself to nobody."""
    end = time.monotonic() + timeout_s
    tick = threading.Event()
    while not condition():
        assert time.monotonic() < end, f"still not so after {timeout_s} s"
        tick.wait(0.002)
