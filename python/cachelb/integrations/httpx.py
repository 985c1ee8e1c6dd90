"""A transport of httpx that routes: for clients such as `openai.AsyncOpenAI` that take an `httpx.AsyncClient`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeAlias

import httpx

from cachelb.errors import BodyError, NoWorkerAvailable
from cachelb.forward import refusal
from cachelb.peers import outgoing
from cachelb.requests import encode_body

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cachelb.admission import Admission
    from cachelb.decision import Decision
    from cachelb.forward import Answer
    from cachelb.router import Router

__all__ = ["RoutingTransport"]

_Headers: TypeAlias = "list[tuple[str, str]]"
_HOP = frozenset({"host", "content-length", "transfer-encoding"})
"""Headers of the request that belong to the address or are made anew."""


class RoutingTransport(httpx.AsyncBaseTransport):
    """Sends each request to the worker that the router picks for it; its own host and port are ignored.

    Answers pass chunk by chunk, and are reported to the router. A request that is no completion is routed by load.
    Where no worker may be picked, the answer is 503, or 429 of an admission, with `Retry-After`.

    Example:
        >>> import httpx
        >>> import cachelb
        >>> from cachelb.integrations.httpx import RoutingTransport
        >>> router = cachelb.Router(["http://gpu0:8000", "http://gpu1:8000"])
        >>> client = httpx.AsyncClient(transport=RoutingTransport(router))  # openai.AsyncOpenAI(http_client=client)
    """

    def __init__(
        self,
        router: Router[str],
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        attempts: int = 3,
        wait_s: float = 0.0,
        first_byte_timeout_s: float | None = None,
        admission: Admission[str] | None = None,
    ) -> None:
        """Wrap a transport.

        Args:
            router: The router; its workers are their URLs.
            transport: Transport to the workers; None is httpx's own.
            attempts: As of `Router.forward`.
            wait_s: As of `Router.forward`.
            first_byte_timeout_s: As of `Router.forward`.
            admission: As of `Router.forward`.
        """
        self._router = router
        self._transport = transport or httpx.AsyncHTTPTransport()
        self._options: dict[str, Any] = {
            "attempts": attempts,
            "wait_s": wait_s,
            "first_byte_timeout_s": first_byte_timeout_s,
            "admission": admission,
        }

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Route a request."""
        body = await request.aread()
        headers = [(name, value) for name, value in request.headers.multi_items() if name not in _HOP]

        async def send(decision: Decision[str]) -> httpx.Response:
            content, sent = self._outgoing(decision, body, headers)
            url = httpx.URL(decision.worker)
            path = url.raw_path.rstrip(b"/") + request.url.raw_path
            target = request.url.copy_with(scheme=url.scheme, host=url.host, port=url.port, raw_path=path)
            all_headers = [*sent, *decision.headers.items()]
            routed = httpx.Request(request.method, target, headers=all_headers, content=content)
            routed.extensions = request.extensions
            response = await self._transport.handle_async_request(routed)
            response.request = routed
            return response

        asked: dict[str, Any] = {"body": body or None, "path": request.url.path, "headers": request.headers}
        try:
            answer = await self._router.forward(send, by_load=True, **asked, **self._options)
        except (BodyError, NoWorkerAvailable) as error:
            text, status, refused = refusal(error)
            return httpx.Response(status, headers=refused, json={"error": {"message": text}})
        found: httpx.Response = answer.response
        return httpx.Response(found.status_code, headers=found.headers, stream=_Stream(answer))

    def _outgoing(self, decision: Decision[str], body: bytes, headers: _Headers) -> tuple[bytes, _Headers]:
        """Put the source of a decision in place of those of the client, where workers copy from each other."""
        if not self._router.peer_groups.names():
            return body, headers
        is_form = dict(headers).get("content-type", "").startswith("multipart/")
        try:
            fields, sent = outgoing(decision, {} if is_form or not body else json.loads(body), headers)
        except (AttributeError, RecursionError, ValueError):
            raise BodyError("not-object", 0) from None
        return encode_body(fields) if fields else body, sent

    async def aclose(self) -> None:
        """Close the transport to the workers; the router stays open."""
        await self._transport.aclose()


class _Stream(httpx.AsyncByteStream):
    def __init__(self, answer: Answer[Decision[str]]) -> None:
        self._answer = answer

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._answer

    async def aclose(self) -> None:
        await self._answer.aclose()
