"""One request for a completion, from its arrival to its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from typing import TYPE_CHECKING, Final, Literal, NoReturn

from aiohttp import web

from cachelb_fakes.fleet.answer import make_answer
from cachelb_fakes.fleet.apis.dialect import RejectedError, parse_body, source_of
from cachelb_fakes.fleet.counts import SeenRequest
from cachelb_fakes.fleet.pages import load_report

if TYPE_CHECKING:
    from cachelb_fakes.fleet.answer import Answer
    from cachelb_fakes.fleet.apis.dialect import Call, Dialect
    from cachelb_fakes.fleet.engine import Engine
    from cachelb_fakes.fleet.faults import Fault
    from cachelb_fakes.fleet.replica import Replica

_JSON: Final = "application/json"
_EVENT_HEADERS: Final = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
_CLOSE_WITH_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 s


class Exchange:
    """One request and its answer."""

    __slots__ = ("_call", "_dialect", "_engine", "_fault", "_open", "_replica", "_request")

    def __init__(self, replica: Replica, request: web.BaseRequest, dialect: type[Dialect]) -> None:
        self._replica = replica
        self._request = request
        self._engine: Engine = replica.engine
        self._dialect = dialect(self._engine)
        self._call: Call | None = None
        self._fault: Fault | None = None
        self._open = True

    async def run(self) -> web.StreamResponse:
        """Answer the request, or fail as planned."""
        counts = self._replica.counts
        counts.started += 1
        counts.open += 1
        self._replica.notify()
        try:
            return await self._answer()
        except RejectedError as error:
            self._end("rejected")
            return error_answer(error, self._dialect)
        except (ConnectionError, web.RequestPayloadError):
            raise asyncio.CancelledError from None  # as aiohttp itself does if the client has gone
        finally:
            self._end("failed" if self._replica.stopped else "aborted")

    async def _answer(self) -> web.StreamResponse:
        replica = self._replica
        drawn = replica.draw_fault()
        coming = replica.peek_fault() or drawn
        if coming is not None and coming.kind == "refuse":
            self._cut(replica.take_fault() or coming)
        data = await self._request.read()
        body = parse_body(data, self._request.headers)
        replica.seen.append(SeenRequest(self._request.path, self._request.headers, body, data))
        # Planned faults go to whole requests, in the order in which these enter the engine.
        self._fault = fault = replica.take_fault() or drawn
        if fault is not None:
            if fault.kind in {"reset", "refuse"}:
                self._cut(fault)
            if fault.kind == "status":
                return self._planned_status(fault)
            if fault.kind == "stall" and not (fault.after_chunks and body.get("stream")):
                await self._stall(fault)
        self._call = call = self._dialect.parse(body)
        call.job.source = source_of(body, self._request.headers)
        replica.counts.tokenized += call.tokenized
        await self._engine.enter(call.job)
        source = self._replica.find_source(call.job.source)
        await self._engine.prefill(call.job, self._remote(call), source)
        if not call.request_id:
            given = self._request.headers.get("X-Request-Id") if self._dialect.names_ids else None
            call.request_id = self._dialect.id_prefix + replica.request_id(given)
        answer = make_answer(call.job.tokens, call.job.max_tokens, call.tool)
        return await (self._stream(call, answer) if call.stream else self._whole(call, answer))

    async def _whole(self, call: Call, answer: Answer) -> web.StreamResponse:
        await self._engine.decode(call.job.max_tokens)
        kv_params = None
        if call.kv_params.get("do_remote_decode"):
            kv_params = self._engine.start_transfer(call.request_id, call.job)
        page = self._dialect.whole(call, answer, kv_params)
        if self._fault is not None and self._fault.kind == "die":
            body = json.dumps(page).encode()
            torn = web.StreamResponse(headers={"Content-Type": _JSON, "Content-Length": str(len(body))})
            await torn.prepare(self._request)
            await torn.write(body[: len(body) // 2])
            self._cut(self._fault)
        self._engine.keep_answer(call.job, answer.ids)
        self._end("finished")
        is_vllm = self._engine.options.engine == "vllm"
        report = load_report(self._engine, self._request.headers.get("endpoint-load-metrics-format", ""))
        return json_answer(page, headers={"endpoint-load-metrics": report} if report is not None and is_vllm else None)

    async def _stream(self, call: Call, answer: Answer) -> web.StreamResponse:
        response = web.StreamResponse(headers=_EVENT_HEADERS)
        await response.prepare(self._request)
        sent = 0
        for event, tokens in self._dialect.events(call, answer, self._engine.options.stream_interval):
            if self._fault is not None and sent == self._fault.after_chunks:
                await self._strike(self._fault)
            if tokens:
                await self._engine.decode(tokens)
            await response.write(event.encode())
            sent += 1
        if self._fault is not None and sent <= self._fault.after_chunks:
            await self._strike(self._fault)
        self._engine.keep_answer(call.job, answer.ids)
        self._end("finished")  # before the client can know
        await response.write_eof(self._dialect.closing(call, answer).encode())
        return response

    async def _strike(self, fault: Fault) -> None:
        if fault.kind == "die":
            self._cut(fault)
        if fault.kind == "stall" and fault.after_chunks:
            await self._stall(fault)

    async def _stall(self, fault: Fault) -> None:
        released = self._replica.released
        self._count(fault)
        await released.wait()

    def _remote(self, call: Call) -> Engine | None:
        """Find the engine that prefilled the prompt; if its KV is gone, this engine computes the prompt itself."""
        params = call.kv_params
        remote = self._replica.find_engine(params.get("remote_engine_id")) if params.get("do_remote_prefill") else None
        return remote if remote is not None and remote.take_transfer(params.get("remote_request_id")) else None

    def _planned_status(self, fault: Fault) -> web.StreamResponse:
        self._count(fault)
        self._end("failed")
        response = error_answer(RejectedError("planned by the test", fault.status), self._dialect)
        if fault.retry_after_s is not None:
            response.headers["Retry-After"] = str(fault.retry_after_s)
        return response

    def _cut(self, fault: Fault) -> NoReturn:
        """End the connection with a reset, as the kernel does for a process that was killed."""
        self._count(fault)
        self._end("failed")
        cut(self._request.transport)
        raise asyncio.CancelledError

    def _count(self, fault: Fault) -> None:
        """Count a fault in the moment it strikes, so that a test that waits for a stall can release it."""
        self._replica.counts.faults[fault.name] += 1
        self._replica.notify()

    def _end(self, ending: Literal["finished", "rejected", "failed", "aborted"]) -> None:
        if not self._open:
            return
        self._open = False
        if self._call is not None:
            self._engine.leave(self._call.job)
        counts = self._replica.counts
        setattr(counts, ending, getattr(counts, ending) + 1)
        counts.open -= 1
        self._replica.notify()


def cut(transport: asyncio.Transport | None) -> None:
    """Reset a connection."""
    if transport is None:
        return
    connection = transport.get_extra_info("socket")
    if connection is not None and connection.family != socket.AF_UNIX:
        with contextlib.suppress(OSError):  # the client closed it in this moment
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _CLOSE_WITH_RESET)
    transport.abort()


def json_answer(page: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """Return a JSON value."""
    return web.Response(status=status, body=json.dumps(page).encode(), content_type=_JSON, headers=headers)


def error_answer(error: RejectedError, dialect: Dialect | type[Dialect] | None = None) -> web.Response:
    """Return an error in the form of an API, else in that of the OpenAI API."""
    return json_answer(error.page() if dialect is None else dialect.error(error), error.status)
