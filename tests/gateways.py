"""Gateways as real servers on loopback: the example, and `cachelb serve`."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import uvicorn
from examples import starlette_gateway
from tests import waiting

from cachelb import Router
from cachelb_gateway.serve import Certificate, Gateway

wait_until = waiting.wait_until


def _listener() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    listener.setblocking(False)
    return listener


@contextlib.contextmanager
def serve_asgi(app: Any, **options: Any) -> Iterator[str]:
    """Serve an ASGI application with uvicorn in a thread; yield its address."""
    listener = _listener()
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", **{"lifespan": "on"} | options))
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


@dataclass
class Served:
    """A gateway of `cachelb_gateway.serve`."""

    gateway: Gateway
    admin_url: str
    drain_s: float
    grace_s: float
    ending: list[threading.Thread] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.gateway.urls[0]

    def stop(self) -> None:
        """Begin the end; a second call ends what is open at once."""
        thread = threading.Thread(target=self.gateway.stop, args=(self.drain_s, self.grace_s))
        thread.start()
        self.ending.append(thread)

    def has_ended(self) -> bool:
        """Wait for the end."""
        for thread in self.ending:
            thread.join(waiting.DEADLINE_S)
        return not any(thread.is_alive() for thread in self.ending)


@contextlib.contextmanager
def serving(
    router: Router[str],
    *,
    listen: str = "127.0.0.1:0",
    token: str | None = None,
    certificate: Certificate | None = None,
    grace_s: float = 30.0,
    drain_s: float = 0.0,
    capture: bool = False,
    **options: Any,
) -> Iterator[Served]:
    """Serve with `cachelb_gateway.serve`, with an address for operators."""
    gateway = Gateway(router, **options)
    gateway.start(listen, admin="127.0.0.1:0", admin_token=token, capture=capture, certificate=certificate)
    assert gateway.admin_url is not None
    served = Served(gateway, gateway.admin_url, drain_s, grace_s)
    try:
        yield served
    finally:
        gateway.stop(drain_s, grace_s)
        assert served.has_ended()


@contextlib.contextmanager
def _serve(router: Router[str], **options: Any) -> Iterator[str]:
    # A request that fails on a connection of a health check is sent to the worker once more.
    with serving(router, **{"health_interval_s": None} | options) as served:
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
