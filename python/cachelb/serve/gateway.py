"""The gateway: forwards each request to the worker that the router picks, and the answer as it comes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from cachelb.admission import Admission
from cachelb.answers import PassingAnswer, header_filter, retry_after
from cachelb.arguments import seconds, whole
from cachelb.errors import BodyError, NoWorkerAvailable, Overloaded
from cachelb.serve.asgi import ClientLeft, body_chunks
from cachelb.serve.exchange import Exchange
from cachelb.serve.headers import answer_headers, request_headers
from cachelb.serve.models import Models
from cachelb.serve.readiness import Readiness
from cachelb.serve.refusal import Refusal
from cachelb.serve.upstreams import Upstreams

if TYPE_CHECKING:
    from typing import Self

    import aiohttp

    from cachelb.admission import AdmissionOptions
    from cachelb.decision import Decision
    from cachelb.router import Router
    from cachelb.serve.asgi import Receive, Scope, Send

_log = logging.getLogger("cachelb.serve")

_RETRIED: Final = frozenset({429, 500, 502, 503, 504})
_REPEATABLE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_PROMPTS: Final = ("/completions", "/messages", "/responses", "/generate", "/embeddings", "/rerank", "/score")
"""Ends of paths whose requests may be computed twice, and whose bodies must be JSON; the engines see to the others."""
_ADMIN: Final = frozenset({"/metrics", "/dump", "/capture"})
_RANK: Final = "x-data-parallel-rank"
_NO_MODEL: Final = "not serving the model"
_CLOSED: Final = "shutting down"
_SWEEP_S: Final = 1.0
_END_S: Final = 5.0
_ERROR: Final = 400
_STATUSES: Final = range(200, 600)
_REDIRECTS: Final = range(300, 400)


class Gateway:
    """An ASGI application that passes every path and method to the workers of a router.

    It answers `/health`, `/ready`, `/v1/models` and its own errors, which have the form of OpenAI's and name no worker.
    A request whose client leaves is cancelled: its connection to the worker is closed, which stops the engine, and its
    booking ends. Use the router with `RequestBodies(strict=True, max_bytes=max_body_bytes)`, so that a prompt that is
    no JSON is answered with 400.

    Attributes:
        admission: What prompts wait at, None if all go to a worker at once.
        readiness: What `/ready` answers.
        held_bytes: Bytes of request bodies in memory.

    Example:
        >>> import asyncio, cachelb
        >>> from cachelb.serve import Gateway, Upstreams
        >>> async def ready():
        ...     sent = []
        ...     async def send(message):
        ...         sent.append(message)
        ...     async with Upstreams() as upstreams, Gateway(cachelb.Router(), upstreams) as gateway:
        ...         await gateway({"type": "http", "method": "GET", "path": "/ready", "headers": []}, None, send)
        ...     return sent[0]["status"]
        >>> asyncio.run(ready())
        503
    """

    def __init__(
        self,
        router: Router[str],
        upstreams: Upstreams,
        *,
        attempts: int = 3,
        wait_s: float = 5.0,
        max_body_bytes: int = 32 << 20,
        body_timeout_s: float = 30.0,
        max_open: int = 4096,
        max_held_bytes: int = 512 << 20,
        admission: AdmissionOptions | None = None,
        idle_timeout_s: float = 600.0,
        expose_headers: Iterable[str] = (),
    ) -> None:
        """Build the application.

        Args:
            router: The router; its workers are their URLs.
            upstreams: The HTTP clients, which stay the caller's to close.
            attempts: Workers that a request is tried on, before the first byte of an answer.
            wait_s: Seconds that a request waits for a worker to become available.
            max_body_bytes: Bytes of a request's body; a longer one is answered with 413.
            body_timeout_s: Seconds that a body may take; a slower one is answered with 408.
            max_open: Requests at a time; more are answered with 503.
            max_held_bytes: Bytes of all bodies at a time; likewise.
            admission: Of an `Admission` that holds prompts where every worker has as much before it as the bounds
                allow, and refuses them with 429; None holds and refuses none.
            idle_timeout_s: Seconds without a byte from the worker or to the client after which a request is ended.
            expose_headers: Names of the decision's headers that clients get, where they are trusted.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: An argument is out of range, or a decision has no such header.
        """
        self._router, self._upstreams = router, upstreams
        self._attempts = whole("attempts", attempts, 1, 100)
        self._wait_s = seconds("wait_s", wait_s, least=0.0)
        self._max_body_bytes = whole("max_body_bytes", max_body_bytes, 1, 1 << 40)
        self._body_timeout_s = seconds("body_timeout_s", body_timeout_s)
        self._max_open = whole("max_open", max_open, 1)
        self._max_held_bytes = whole("max_held_bytes", max_held_bytes, 1, 1 << 50)
        self.admission = None if admission is None else Admission(router, **asdict(admission))
        self._idle_timeout_s = seconds("idle_timeout_s", idle_timeout_s)
        exposed = frozenset([expose_headers] if isinstance(expose_headers, str) else expose_headers)
        self._exposed = header_filter(exposed) if exposed else None
        self._models = Models(router, upstreams)
        self._open: dict[Exchange, None] = {}
        self._waiting = 0
        self._sweeping: asyncio.Task[None] | None = None
        self.readiness = Readiness(router)
        self.held_bytes = 0

    @property
    def open_requests(self) -> int:
        """Requests that are served now."""
        return len(self._open)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Args:
            scope: Of ASGI, like the others.
            receive: Awaited for the parts of the body, then for the client to leave.
            send: Awaited with the parts of the answer.
        """
        if scope["type"] != "http":
            raise RuntimeError(f"a gateway serves HTTP only, not {scope['type']}")
        path: str = scope["path"]
        if path in {"/health", "/ready"}:
            await self.readiness.answer(path, send)
            return
        loop = asyncio.get_running_loop()
        exchange = Exchange(loop.time() + self._body_timeout_s)
        self._open[exchange] = None
        if self._sweeping is None:
            self._sweeping = loop.create_task(self._sweep())
        try:
            await self._serve(exchange, scope, receive, send)
        except Refusal as refusal:
            exchange.finish()
            await refusal.send(send, receive)
        except ClientLeft:
            return
        except asyncio.CancelledError:
            exchange.finish()
            if not exchange.started and not exchange.left:
                await _end_early(exchange).send(send, receive)
            # Otherwise the answer stays torn: the server closes the connection.
        except Exception:  # noqa: BLE001 - logged; the client gets an answer in the form of the others
            exchange.finish()
            _log.exception("a request failed")
            if not exchange.started:
                await Refusal(500, "internal_error", "the gateway failed").send(send, receive)
        finally:
            exchange.finish()
            del self._open[exchange]
            self.held_bytes -= exchange.held

    def close(self) -> None:
        """Admit no more prompts; those that wait still go to a worker. Idempotent."""
        if self.admission is not None:
            self.admission.close()

    def stop(self) -> None:
        """End every open request now: with 503, or in the middle of its answer."""
        for exchange in list(self._open):
            exchange.stop()

    async def aclose(self) -> None:
        """End every open request, and wait for that. Idempotent."""
        self.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                while self._open:
                    self.stop()
                    await asyncio.sleep(0.01)
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()

    async def _serve(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the request, then try workers until one of them begins to answer."""
        path: str = scope["path"]
        if path in _ADMIN:
            raise Refusal(404, "not_found", "there is nothing at this path")
        if not scope["raw_path"].startswith(b"/"):
            raise Refusal(400, "invalid_target", "the request's target must be a path")
        if len(self._open) > self._max_open:
            raise _overloaded()
        body = await self._read_body(exchange, scope, receive)
        clock = asyncio.get_running_loop().time
        exchange.deadline_s = clock() + self._idle_timeout_s
        exchange.watch(receive)
        if scope["method"] == "GET" and (path == "/v1/models" or path.startswith("/v1/models/")):
            await self._models.answer(path, scope["headers"], send)
            exchange.finish()
            return
        call = _Call(scope, body)
        exchange.deadline_s = math.inf  # no worker is idle yet; `wait_s` and the admission bound the time
        decision: Decision[str] | None = await self._select(call)
        exchange.deadline_s = clock() + self._idle_timeout_s
        attempt = 0
        while decision is not None:
            attempt += 1
            with decision:  # however this ends, the booked load is released
                decision = await self._forward(exchange, call, decision, send, is_last=attempt >= self._attempts)
        exchange.finish()

    async def _read_body(self, exchange: Exchange, scope: Scope, receive: Receive) -> bytes:
        """Read the body, within bounds; `_sweep` sees to the time."""
        limit = self._max_body_bytes
        for name, value in scope["headers"]:
            if name == b"content-length" and int(value) > limit:
                raise _too_large(limit)
        chunks: list[bytes] = []
        async for chunk in body_chunks(receive):
            exchange.held += len(chunk)
            self.held_bytes += len(chunk)
            if exchange.held > limit:
                raise _too_large(limit)
            if self.held_bytes > self._max_held_bytes:
                raise _overloaded()
            chunks.append(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def _select(self, call: _Call) -> Decision[str]:
        """Pick a worker, by the body where it holds a prompt."""
        request: dict[str, Any] = {"path": call.path, "headers": call.headers, "by_load": not call.is_prompt}
        if call.is_prompt:
            request["body"] = call.body
        try:
            return await self._pick(request, is_prompt=call.is_prompt)
        except BodyError as error:
            raise Refusal(400, "invalid_body", str(error)) from None
        except NoWorkerAvailable as error:
            raise _no_worker(error) from None

    async def _pick(self, request: dict[str, Any], *, is_prompt: bool) -> Decision[str]:
        admission = self.admission if is_prompt else None
        if self._waiting and admission is None:  # behind those that wait
            return await self._wait(request, None)
        try:
            if admission is not None:
                return await admission.acquire(**request)
            return self._router.select_worker(**request)
        except Overloaded:
            raise
        except NoWorkerAvailable as error:
            if not _lacks_model(error):
                return await self._wait(request, admission)
            if is_prompt:
                raise Refusal(404, "model_not_found", "the model does not exist") from None
            return self._select_any_model(request, error)

    async def _wait(self, request: dict[str, Any], admission: Admission[str] | None) -> Decision[str]:
        """Pick a worker when one becomes available, and has room if there is an admission."""
        if admission is not None and self._wait_s > 0:
            return await admission._acquire_when_ready(self._wait_s, request)  # noqa: SLF001 - a part of it
        self._waiting += 1
        try:
            return await self._router.select_worker_when_ready(timeout_s=self._wait_s, **request)
        finally:
            self._waiting -= 1

    def _select_any_model(self, request: dict[str, Any], error: NoWorkerAvailable) -> Decision[str]:
        """Pick a worker of any model, for a request that names none."""
        for model in self._router.stats().models:
            try:
                return self._router.select_worker(**request, model=model)
            except NoWorkerAvailable as other:
                error = other
        raise error

    async def _forward(
        self, exchange: Exchange, call: _Call, decision: Decision[str], send: Send, *, is_last: bool
    ) -> Decision[str] | None:
        """Forward to one worker; return the decision for another one if that should be tried."""
        import aiohttp

        answer: aiohttp.ClientResponse | None = None
        try:
            answer = await self._request(call, decision)
            if answer.status >= _ERROR:
                decision.on_error(answer.status, retry_after_s=retry_after(answer.headers))
                is_last = is_last or answer.status not in _RETRIED
                if not is_last and call.is_repeatable and (following := _another(decision)) is not None:
                    return following
            await self._pass_on(exchange, decision, answer, send)
        except (aiohttp.ClientError, OSError) as error:
            decision.on_error(error)
            # An answer that has begun stays torn: the server closes the connection.
            return None if exchange.started else _elsewhere(call, decision, error, is_last=is_last)
        except asyncio.CancelledError:
            if exchange.timed_out and not exchange.started:
                decision.on_error(TimeoutError("the worker did not answer in time"))
            raise
        finally:
            if answer is not None:
                answer.close()
        return None

    async def _request(self, call: _Call, decision: Decision[str]) -> aiohttp.ClientResponse:
        import aiohttp
        from yarl import URL

        upstream = self._upstreams.of(decision.worker, self._router)
        headers = call.passed
        if decision.dp_rank is not None:
            headers = [*headers, (_RANK, decision.headers[_RANK])]
        if upstream.authorization is not None:
            headers = [each for each in headers if each[0] != "authorization"]
            headers = [*headers, ("authorization", upstream.authorization)]
        answer = await upstream.session.request(
            call.method,
            URL(upstream.base + call.target, encoded=True),
            data=call.body if call.has_body else None,
            headers=headers,
            allow_redirects=False,
        )
        if answer.status not in _STATUSES:
            answer.close()
            raise aiohttp.ServerDisconnectedError("no status of HTTP")
        return answer

    async def _pass_on(
        self, exchange: Exchange, decision: Decision[str], answer: aiohttp.ClientResponse, send: Send
    ) -> None:
        """Send the answer on as it comes, and report it to the decision."""
        content, status = answer.content, answer.status
        passing = PassingAnswer(decision, is_stream=answer.headers.get("content-type", "").startswith("text/event"))
        chunk = await content.readany()  # with nothing sent yet, another worker can still be tried
        headers = answer_headers(answer.raw_headers, status)
        if self._exposed is not None:
            headers += [(name.encode(), value.encode()) for name, value in self._exposed(decision.headers).items()]
        if status in _REDIRECTS:
            headers = _without_worker(headers, str(answer.url.origin()).encode())
        clock, idle_s = asyncio.get_running_loop().time, self._idle_timeout_s
        exchange.started = True
        await send({"type": "http.response.start", "status": status, "headers": headers})
        while chunk and not content.at_eof():
            passing.feed(chunk)
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            exchange.deadline_s = clock() + idle_s
            chunk = await content.readany()
        passing.feed(chunk)
        passing.end()
        await send({"type": "http.response.body", "body": chunk})

    async def _sweep(self) -> None:
        """End requests whose worker or client does nothing any more."""
        clock = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(min(_SWEEP_S, self._idle_timeout_s, self._body_timeout_s))
            now = clock()
            for exchange in [each for each in self._open if each.deadline_s < now]:
                exchange.stop(timed_out=True)


class _Call:
    """A client's request, as it is sent to each worker that is tried."""

    __slots__ = ("body", "has_body", "headers", "is_prompt", "is_repeatable", "method", "passed", "path", "target")

    def __init__(self, scope: Scope, body: bytes) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: list[tuple[bytes, bytes]] = scope["headers"]
        self.body = body
        query: bytes = scope["query_string"]
        raw: bytes = scope["raw_path"]
        self.target = (raw + b"?" + query if query else raw).decode("latin-1")
        self.is_prompt = self.method == "POST" and self.path.endswith(_PROMPTS)
        self.is_repeatable = self.is_prompt or self.method in _REPEATABLE
        self.has_body = bool(body) or self.method not in _REPEATABLE
        self.passed = request_headers(self.headers, is_read=self.is_prompt)


def _lacks_model(error: NoWorkerAvailable) -> bool:
    return bool(error.reasons) and all(why == _NO_MODEL for why in error.reasons.values())


def _another(decision: Decision[str]) -> Decision[str] | None:
    try:
        return decision.retry()
    except NoWorkerAvailable:
        return None


def _elsewhere(call: _Call, decision: Decision[str], error: Exception, *, is_last: bool) -> Decision[str]:
    """Book another worker for a request that one did not answer, or refuse it."""
    import aiohttp

    # A request that was never sent may go elsewhere, whatever it asks for.
    is_unsent = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
    if is_last or not (call.is_repeatable or is_unsent):
        raise Refusal(502, "worker_unreachable", "the worker did not answer") from None
    try:
        return decision.retry()
    except NoWorkerAvailable as missing:
        raise _no_worker(missing) from None


def _without_worker(headers: list[tuple[bytes, bytes]], origin: bytes) -> list[tuple[bytes, bytes]]:
    """Leave the worker's address out of where it redirects to."""
    return [
        (name, value.removeprefix(origin) or b"/") if name in {b"location", b"content-location"} else (name, value)
        for name, value in headers
    ]


def _no_worker(error: NoWorkerAvailable) -> Refusal:
    """Answer without the error's text, which names workers."""
    if isinstance(error, Overloaded) and error.reason == _CLOSED:
        return _shutting_down()
    if isinstance(error, Overloaded):
        message = "the workers are busy; try again later"
        return Refusal(error.status, "workers_busy", message, retry_after_s=error.retry_after_s)
    return Refusal(503, "no_worker_available", "no worker is available", retry_after_s=error.retry_after_s)


def _overloaded() -> Refusal:
    return Refusal(503, "overloaded", "too many requests are open", retry_after_s=1.0, closes=True)


def _too_large(limit: int) -> Refusal:
    return Refusal(413, "body_too_large", f"the body is longer than {limit} bytes", closes=True)


def _end_early(exchange: Exchange) -> Refusal:
    if exchange.timed_out and not exchange.has_body:
        return Refusal(408, "body_timeout", "the body took too long", closes=True)
    if exchange.timed_out:
        return Refusal(504, "timeout", "the worker did not answer in time")
    return _shutting_down()


def _shutting_down() -> Refusal:
    return Refusal(503, "shutting_down", "the gateway is about to end", retry_after_s=1.0, closes=True)
