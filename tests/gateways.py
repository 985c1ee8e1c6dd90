"""Gateways as real servers on loopback: the example, and `cachelb serve`."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import uvicorn
from examples import starlette_gateway
from starlette.applications import Starlette
from tests import waiting

from cachelb import Router
from cachelb.serve import Admin, Gateway, Listener, Service, Upstreams
from cachelb.serve.service import run_in_loop

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


class Served(NamedTuple):
    """A gateway of `cachelb.serve` in a thread."""

    url: str
    admin_url: str
    gateway: Gateway
    service: Service
    thread: threading.Thread
    loop: asyncio.AbstractEventLoop


@contextlib.contextmanager
def serving(
    router: Router[str],
    *,
    listen: str = "127.0.0.1:0",
    token: str | None = None,
    tls: tuple[Path | None, Path | None] = (None, None),
    upstream_ca: Path | None = None,
    grace_s: float = 30.0,
    drain_s: float = 0.0,
    capture: bool = False,
    **options: Any,
) -> Iterator[Served]:
    """Run `cachelb.serve` in a thread, with an admin address."""
    made: Future[Served] = Future()

    async def main() -> None:
        async with Upstreams(ca_file=upstream_ca) as upstreams, Gateway(router, upstreams, **options) as gateway:
            admin = Admin(router, token=token, readiness=gateway.readiness, capture=capture)
            inside = Listener(admin, "127.0.0.1:0")
            outside = Listener(gateway, listen, certificate=tls[0], key=tls[1])
            service = Service(
                gateway.readiness, [outside], gateway=gateway, admin=inside, grace_s=grace_s, drain_s=drain_s
            )
            loop = asyncio.get_running_loop()
            made.set_result(Served(outside.url, inside.url, gateway, service, threading.current_thread(), loop))
            await service.run()

    def run() -> None:
        try:
            run_in_loop(main())
        except BaseException as error:
            if made.done():
                raise
            made.set_exception(error)

    thread = threading.Thread(target=run, name="gateway")
    thread.start()
    try:
        served = made.result()
        try:
            yield served
        finally:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                served.loop.call_soon_threadsafe(served.service.stop)
    finally:
        thread.join()


@contextlib.contextmanager
def _serve(router: Router[str], **options: Any) -> Iterator[str]:
    with serving(router, **options) as served:
        yield served.url


GATEWAYS: dict[str, Callable[..., contextlib.AbstractContextManager[str]]] = {
    "starlette": _starlette,
    "serve": _serve,
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
