"""A gateway in front of OpenAI-compatible engines: an aiohttp server and client around a `cachelb.Router`.

Run `python aiohttp_gateway.py http://gpu0:8000 http://gpu1:8000 unix:///run/vllm.sock`, or with `--config FILE`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import AsyncIterator, Iterable
from typing import Any

import aiohttp
import prometheus_client
from aiohttp import web

import cachelb
from cachelb.answers import header_filter, read_usage, retry_after
from cachelb.bodies import UNTRUSTED_HEADERS
from cachelb.metrics import CONTENT_TYPE, PrometheusCollector
from cachelb.requests import RequestError, read_request
from cachelb.state import SnapshotFile

RETRIED = {429, 500, 502, 503, 504}
DROPPED = {"host", "server", "date", "connection", "keep-alive", "accept-encoding"}  # between two connections only
DROPPED |= {"content-length", "content-encoding", "transfer-encoding"} | UNTRUSTED_HEADERS
ROUTER = web.AppKey("router", cachelb.Router)


class Gateway:
    """Forwards each request to the worker that the router picks, and the answer as it comes."""

    def __init__(
        self, router: cachelb.Router[str], *, attempts: int = 3, wait_s: float = 5.0, expose_headers: Iterable[str] = ()
    ) -> None:
        self.router, self.attempts, self.wait_s = router, attempts, wait_s
        self.exposed = header_filter(expose_headers)
        self.clients: dict[str | None, aiohttp.ClientSession] = {}

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Try workers until one of them begins to answer.

        A client that leaves cancels this handler (`handler_cancellation` in `main`), which closes the connection to
        the worker, and so stops its engine.
        """
        try:
            body = await read_request(request.content.iter_any())
            decision = await self.router.select_worker_when_ready(
                timeout_s=self.wait_s, body=body, path=request.path, headers=request.headers
            )
            for last in [False] * (self.attempts - 1) + [True]:
                with decision:  # however this ends, the booked load is given back
                    response = await self.forward(decision, request, body, last=last)
                    if response is not None:
                        return response
                decision = decision.retry()
        except RequestError as error:
            return web.Response(status=error.status, text=str(error))
        except cachelb.NoWorkerAvailable as error:
            headers = {"retry-after": str(math.ceil(error.retry_after_s))}
            # The error itself names workers.
            raise web.HTTPServiceUnavailable(text="no worker is available", headers=headers) from None
        raise AssertionError("the last attempt returns or raises")

    async def forward(
        self, decision: cachelb.Decision[str], request: web.Request, body: bytes, *, last: bool
    ) -> web.StreamResponse | None:
        """Forward to one worker; return None if another one should be tried."""
        client, base = self.client(decision.key)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in DROPPED}
        headers |= {"accept-encoding": "identity", **decision.headers}
        response = web.StreamResponse()
        try:
            async with client.post(base + request.path, data=body, headers=headers) as answer:
                if not answer.ok:
                    decision.on_error(answer.status, retry_after_s=retry_after(answer.headers))
                    if answer.status in RETRIED and not last:
                        return None
                chunks = decision.track(answer.content.iter_any(), usage_of=lambda tail: read_usage(b"".join(tail)))
                chunk = await anext(chunks, b"")  # with nothing sent yet, another worker can still be tried
                response.set_status(answer.status)
                response.headers.update({k: v for k, v in answer.headers.items() if k.lower() not in DROPPED})
                response.headers.update(self.exposed(decision.headers))
                await response.prepare(request)
                while chunk:
                    await response.write(chunk)
                    chunk = await anext(chunks, b"")
        except aiohttp.ClientError as error:
            if response.prepared:  # the worker broke off, which the decision knows, or the client did
                if request.transport is not None:
                    request.transport.abort()  # a torn answer stays torn
                decision.cancel()
                return response
            decision.on_error(error)
            if last:
                exposed = self.exposed(decision.headers)
                raise web.HTTPBadGateway(text="the worker did not answer", headers=exposed) from None
            return None
        await response.write_eof()
        return response

    def client(self, worker: str) -> tuple[aiohttp.ClientSession, str]:
        """Return the client for a worker and where its URLs begin: a client per socket, and one for the others."""
        socket = worker.removeprefix("unix://") if worker.startswith("unix://") else None
        if socket not in self.clients:
            connector = aiohttp.UnixConnector(socket, limit=0) if socket else aiohttp.TCPConnector(limit=0)
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
            self.clients[socket] = aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)
        return self.clients[socket], "http://worker" if socket else worker


def make_app(router: cachelb.Router[str], **options: Any) -> web.Application:
    """Build the application, which closes the router at its end; the options are those of `Gateway`."""
    gateway, registry = Gateway(router, **options), prometheus_client.CollectorRegistry()
    registry.register(PrometheusCollector(router))

    async def lifespan(_app: web.Application) -> AsyncIterator[None]:
        with router:
            yield
        for client in gateway.clients.values():
            await client.close()

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=prometheus_client.generate_latest(registry), headers={"content-type": CONTENT_TYPE})

    app = web.Application()
    app.add_routes(web.post(path, gateway.serve) for path in ("/v1/completions", "/v1/chat/completions"))
    app.add_routes([web.get("/metrics", metrics)])
    app.cleanup_ctx.append(lifespan)
    app[ROUTER] = router
    return app


def main() -> None:
    """Serve what the command line says."""
    parser = argparse.ArgumentParser(description="Route requests to OpenAI-compatible engines.")
    parser.add_argument("workers", nargs="*", help="http://host:port or unix:///path.sock")
    parser.add_argument("--config", help="TOML, YAML or JSON file, in place of workers")
    parser.add_argument("--snapshot", metavar="FILE", help="for a warm start; needs a secret in the configuration")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--expose-headers", nargs="*", default=[], metavar="NAME", help="of decisions, to clients")
    parser.add_argument("--grace-s", type=int, default=20, help="for open requests at the end")
    options = parser.parse_args()
    router = cachelb.Router.from_config(options.config or {"workers": options.workers, "load": {}})
    if options.snapshot:
        router.attach(SnapshotFile(options.snapshot))  # written now and then, and at the end
    app, grace = make_app(router, expose_headers=options.expose_headers), options.grace_s
    web.run_app(app, host=options.host, port=options.port, handler_cancellation=True, shutdown_timeout=grace)


if __name__ == "__main__":
    main()
