"""The example gateways as real servers on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import aiohttp
import uvicorn
from aiohttp import web
from examples import aiohttp_gateway, starlette_gateway
from starlette.applications import Starlette
from tests import waiting

from cachelb import Router

wait_until = waiting.wait_until


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


async def storm(url: str, prompts: Sequence[str], *, clients: int, leavers_tokens: int) -> Counter[str]:
    """Ask with many clients, a tenth of whose requests they give up; count statuses and what was "torn" or "left"."""
    rng, seen, numbered = random.Random(5), Counter[str](), iter(enumerate(prompts))

    async def client(session: aiohttp.ClientSession) -> None:
        for number, prompt in numbered:
            leaves = rng.random() < 0.1
            # An answer must last longer than it takes to notice that its client left.
            length = leavers_tokens if leaves else 6
            body = {"prompt": prompt, "max_tokens": length, "stream": leaves or number % 3 > 0}
            try:
                async with asyncio.timeout(0.005 if leaves and number % 2 else None):
                    async with session.post(f"{url}/v1/completions", json=body) as answer:
                        await (answer.content.readany() if leaves else answer.read())
                        seen["left" if leaves else str(answer.status)] += 1
            except TimeoutError:
                seen["left"] += 1
            except aiohttp.ClientPayloadError:
                seen["torn"] += 1

    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client(session))
    return seen
