"""A gateway for disaggregated prefill: vLLM workers with the NixlConnector, in two roles.

A prefill worker computes the prompt, a decode worker fetches its KV cache and generates. The prompt's token ids travel
along, so that it is tokenised once. Run `python pd_gateway.py --prefill http://gpu0:8000 --decode http://gpu1:8000`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

import cachelb
from cachelb.answers import header_filter, read_usage
from cachelb.forward import ClientLeft, Forward, refusal
from cachelb.requests import RequestError, read_request
from cachelb.state import SnapshotFile
from cachelb_gateway import config

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
        request, started = Request(scope, receive), False

        async def select() -> cachelb.PairDecision[str]:
            return self.router.select_pair(body=body, path=request.url.path, headers=request.headers)

        try:
            body = await read_request(request.stream())
            asked = read_body(body)
            ask = partial(self.send, request=request, asked=asked)
            async with Forward(select, ask, attempts=self.attempts, left=receive) as answer:
                kept = [(k, v) for k, v in answer.response.headers.raw if k.lower() == b"content-type"]
                started = True
                await answer.send_to(send, kept, self.exposed(answer.decision.headers))
            await send({"type": "http.response.body"})
        except (ClientDisconnect, ClientLeft):
            return
        except (cachelb.CachelbError, httpx.TransportError) as error:
            if not started:  # a torn answer stays torn: the server closes the connection
                text, status, headers = refusal(error)
                raise HTTPException(status, text, headers) from None

    async def send(self, pair: cachelb.PairDecision[str], *, request: Request, asked: dict[str, Any]) -> httpx.Response:
        """Have the prompt computed, unless the decode worker does it, and begin to generate."""
        headers = {name: request.headers[name] for name in FORWARDED if name in request.headers}

        async def post(worker: str, body: dict[str, Any]) -> httpx.Response:
            prepared = self.client.build_request("POST", worker + request.url.path, json=body, headers=headers)
            return await self.client.send(prepared, stream=True)

        if pair.prefill is not None:
            prefilled = await post(pair.prefill.key, prefill_body(asked))
            if prefilled.is_error:
                return prefilled
            pair.prefill.on_complete(**read_usage(await prefilled.aread()))
            asked = decode_body(asked, prefilled.json())
        return await post(pair.decode.key, asked)


def read_body(body: bytes) -> dict[str, Any]:
    """Read the fields of a request, to which those of the transfer are added."""
    try:
        return {**json.loads(body)}
    except (TypeError, ValueError, RecursionError):
        raise RequestError(400, "the body is no JSON object") from None


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
