"""A gateway for disaggregated prefill: vLLM workers with the NixlConnector, in two roles.

A prefill worker computes the prompt, a decode worker fetches its KV cache and generates. The prompt's token ids travel
along, so that it is tokenised once. Run `python pd_gateway.py --prefill http://gpu0:8000 --decode http://gpu1:8000`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Iterable
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

import cachelb
from cachelb.answers import header_filter, read_usage, retry_after
from cachelb.requests import RequestError, read_request
from cachelb.state import SnapshotFile
from cachelb_gateway import config

RETRIED = {429, 500, 502, 503, 504}
FORWARDED = ("authorization", "content-type", "x-request-id")
HAND_OVER: dict[str, Any] = dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port"))
HAND_OVER |= {"do_remote_decode": True, "do_remote_prefill": False}


class Gateway:
    """Has each prompt computed by one worker and continued by another."""

    def __init__(self, router: cachelb.Router[str], *, attempts: int = 3, expose_headers: Iterable[str] = ()) -> None:
        if local := [worker for worker in router.workers() if worker.startswith("unix:")]:
            raise ValueError(f"worker {local[0]!r} is a Unix socket, but KV cache travels over the network")
        self.router, self.attempts, self.exposed = router, attempts, header_filter(expose_headers)
        self.client = httpx.AsyncClient(timeout=httpx.Timeout(None, connect=5), limits=httpx.Limits())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve until the answer is complete, or until the client is gone: then the workers must stop at once."""
        request = Request(scope, receive)
        with contextlib.suppress(ClientDisconnect, asyncio.CancelledError):
            try:
                body = await read_request(request.stream())
                asked = {**json.loads(body)}
            except (RequestError, TypeError, ValueError, RecursionError) as error:
                raise HTTPException(getattr(error, "status", 400), "the body is too much, or no JSON object") from None
            serving = asyncio.create_task(self.serve(request, body, asked, send))
            leaving = asyncio.ensure_future(receive())  # the body is read, so the next message is the disconnect
            leaving.add_done_callback(lambda _: serving.cancel())
            serving.add_done_callback(lambda _: leaving.cancel())
            await serving

    async def serve(self, request: Request, body: bytes, asked: dict[str, Any], send: Send) -> None:
        """Try pairs of workers until a decode worker begins to answer."""
        try:
            pair = self.router.select_pair(body=body, path=request.url.path, headers=request.headers)
            for last in [False] * (self.attempts - 1) + [True]:
                with pair:  # however this ends, both loads are given back
                    if await self.forward(pair, request, asked, send, last=last):
                        return
                pair = pair.retry()
        except cachelb.NoWorkerAvailable as error:  # its text names workers: not for clients
            raise HTTPException(503, "no worker", {"retry-after": str(math.ceil(error.retry_after_s))}) from None

    async def forward(
        self, pair: cachelb.PairDecision[str], request: Request, asked: dict[str, Any], send: Send, *, last: bool
    ) -> bool:
        """Forward to one pair; return False if another one should be tried."""
        path, started = request.url.path, False
        headers = {name: request.headers[name] for name in FORWARDED if name in request.headers}
        try:
            if pair.prefill is not None:
                answer = await self.client.post(pair.prefill.key + path, json=prefill_body(asked), headers=headers)
                if answer.is_error:
                    pair.on_error(answer.status_code, retry_after_s=retry_after(answer.headers))
                    if answer.status_code in RETRIED and not last:
                        return False
                    raise HTTPException(answer.status_code, answer.text)
                pair.prefill.on_complete(**read_usage(answer.content))
                asked = decode_body(asked, answer.json())
            async with self.client.stream("POST", pair.decode.key + path, json=asked, headers=headers) as answer:
                if answer.is_error:
                    pair.on_error(answer.status_code, retry_after_s=retry_after(answer.headers))
                    if answer.status_code in RETRIED and not last:
                        return False
                chunks = pair.track(answer.aiter_raw(), usage_of=lambda tail: read_usage(b"".join(tail)))
                chunk = await anext(chunks, b"")  # with nothing sent yet, another pair can still be tried
                started = True
                kept = [(k, v) for k, v in answer.headers.raw if k.lower() == b"content-type"]
                kept += [(k.encode(), v.encode()) for k, v in self.exposed(pair.headers).items()]
                await send({"type": "http.response.start", "status": answer.status_code, "headers": kept})
                while chunk:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                    chunk = await anext(chunks, b"")
        except httpx.TransportError as error:
            pair.on_error(error)
            if last and not started:
                raise HTTPException(502, "the workers did not answer", self.exposed(pair.headers)) from None
            return started  # a torn answer stays torn: the server closes the connection
        await send({"type": "http.response.body"})
        return True


def prefill_body(asked: dict[str, Any]) -> dict[str, Any]:
    """Ask for the KV cache of the prompt, its token ids, and one token, which engines cannot leave out."""
    body = {k: v for k, v in asked.items() if k not in {"stream", "stream_options", "max_completion_tokens"}}
    return body | {"max_tokens": 1, "kv_transfer_params": HAND_OVER, "return_token_ids": True}


def decode_body(asked: dict[str, Any], prefilled: dict[str, Any]) -> dict[str, Any]:
    """Ask for the answer to a prompt whose KV cache and token ids are there."""
    chat = "messages" in asked
    ids = (prefilled if chat else prefilled["choices"][0])["prompt_token_ids"]
    transfer = prefilled.get("kv_transfer_params")
    return asked | {"prompt_token_ids" if chat else "prompt": ids, "kv_transfer_params": transfer}


def make_app(router: cachelb.Router[str], **options: Any) -> Starlette:
    """Build the application, which closes the router at its end; the options are those of `Gateway`."""
    gateway = Gateway(router, **options)

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        with router:
            yield
        await gateway.client.aclose()

    routes = [Route(path, gateway, methods=["POST"]) for path in ("/v1/completions", "/v1/chat/completions")]
    return Starlette(routes=routes, lifespan=lifespan)


def main() -> None:
    """Serve by the options of the command line."""
    parser = argparse.ArgumentParser(description="Route requests to pairs of vLLM workers.")
    parser.add_argument("--prefill", nargs="+", default=[], help="http://host:port of prefill workers")
    parser.add_argument("--decode", nargs="+", default=[], help="the same of decode workers")
    parser.add_argument("--config", help="TOML, YAML or JSON file, in place of workers")
    parser.add_argument("--snapshot", metavar="FILE", help="for a warm start; needs a secret in the configuration")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--expose-headers", nargs="*", default=[], metavar="NAME", help="of decisions, to clients")
    parser.add_argument("--grace-s", type=int, default=20, help="for open requests at the end")
    options = parser.parse_args()
    workers = [{"url": url, "role": role} for role in ("prefill", "decode") for url in vars(options)[role]]
    router = config.load(options.config or {"workers": workers, "load": {}}).build()
    if options.snapshot:
        router.attach(SnapshotFile(options.snapshot))  # written now and then, and at the end
    app = make_app(router, expose_headers=options.expose_headers)
    uvicorn.run(app, port=options.port, timeout_graceful_shutdown=options.grace_s)


if __name__ == "__main__":
    main()
