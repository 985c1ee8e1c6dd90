"""A gateway of your own around a `cachelb.Router`, with Starlette, httpx and uvicorn: what `cachelb serve` does inside.

Run `python starlette_gateway.py http://gpu0:8000 http://gpu1:8000 unix:///run/vllm.sock`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterable
from typing import Any

import httpx
import prometheus_client
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

import cachelb
from cachelb.answers import header_filter
from cachelb.bodies import UNTRUSTED_HEADERS
from cachelb.forward import ClientLeft, refusal
from cachelb.metrics import CONTENT_TYPE, PrometheusCollector
from cachelb.requests import read_request
from cachelb_gateway import config

DROPPED = {"host", "server", "date", "connection", "keep-alive", "accept-encoding"}  # between two connections only
DROPPED |= {"content-length", "content-encoding", "transfer-encoding"} | UNTRUSTED_HEADERS
PAGE = {"content-type": CONTENT_TYPE}
TLS = ssl.create_default_context()


class Gateway:
    """Forwards each request to the worker that the router picks, and the answer as it comes."""

    def __init__(
        self, router: cachelb.Router[str], *, attempts: int = 3, wait_s: float = 5.0, expose_headers: Iterable[str] = ()
    ) -> None:
        self.router, self.attempts, self.wait_s = router, attempts, wait_s
        self.exposed = header_filter(expose_headers)
        self.clients: dict[str, httpx.AsyncClient] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve until the answer is complete, or until the client is gone: then the worker must stop at once."""
        request, started = Request(scope, receive), False
        try:
            body = await read_request(request.stream())
            forward = self.router.forward(
                lambda decision: self.send(decision, request, body),
                attempts=self.attempts,
                wait_s=self.wait_s,
                left=receive,  # the body is read, so the next message is the disconnect
                body=body,
                path=request.url.path,
                headers=request.headers,
            )
            async with forward as answer:
                kept = [(k, v) for k, v in answer.response.headers.raw if k.decode().lower() not in DROPPED]
                started = True
                await answer.send_to(send, kept, self.exposed(answer.decision.headers))
            await send({"type": "http.response.body"})
        except (ClientDisconnect, ClientLeft):
            return
        except (cachelb.CachelbError, httpx.TransportError, ConnectionError) as error:
            if not started:  # a torn answer stays torn: the server closes the connection
                text, status, headers = refusal(error)
                raise HTTPException(status, text, headers) from None

    async def send(self, decision: cachelb.Decision[str], request: Request, body: bytes) -> httpx.Response:
        """Send to one worker."""
        client = self.client(decision.key)
        headers = {name: value for name, value in request.headers.items() if name not in DROPPED}
        headers |= {"accept-encoding": "identity", **decision.headers}
        try:
            asked = client.build_request("POST", request.url.path, content=body, headers=headers)
            return await client.send(asked, stream=True)
        except AttributeError as error:  # of a connection that is closed at once
            raise ConnectionError(str(error)) from None

    def client(self, worker: str) -> httpx.AsyncClient:
        """Return the client for a worker: one each, because httpx searches all connections of a client per request."""
        if worker not in self.clients:
            removed = [self.clients.pop(key) for key in self.clients.keys() - set(self.router.keys())]
            self.closing = asyncio.gather(*(client.aclose() for client in removed))
            socket = worker.removeprefix("unix://") if worker.startswith("unix://") else None
            transport = httpx.AsyncHTTPTransport(verify=TLS, uds=socket, limits=httpx.Limits())
            base, timeout = "http://worker" if socket else worker, httpx.Timeout(None, connect=5)
            self.clients[worker] = httpx.AsyncClient(base_url=base, transport=transport, timeout=timeout)
        return self.clients[worker]


def make_app(router: cachelb.Router[str], **options: Any) -> Starlette:
    """Build the application, which closes the router at its end; the options are those of `Gateway`."""
    gateway, registry = Gateway(router, **options), prometheus_client.CollectorRegistry()
    registry.register(PrometheusCollector(router))

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        with router:
            yield
        await asyncio.gather(*(client.aclose() for client in gateway.clients.values()))

    routes = [Route(path, gateway, methods=["POST"]) for path in ("/v1/completions", "/v1/chat/completions")]
    routes.append(Route("/metrics", lambda _: Response(prometheus_client.generate_latest(registry), 200, PAGE)))
    app = Starlette(routes=routes, lifespan=lifespan)
    app.state.router = router
    return app


def main() -> None:
    """Serve by the options of the command line."""
    parser = argparse.ArgumentParser(description="Route requests to OpenAI-compatible engines.")
    parser.add_argument("workers", nargs="+", help="http://host:port or unix:///path.sock")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    options = parser.parse_args()
    app = make_app(config.load({"workers": options.workers, "load": {}}).build())
    uvicorn.run(app, host=options.host, port=options.port, timeout_graceful_shutdown=20)


if __name__ == "__main__":
    main()
