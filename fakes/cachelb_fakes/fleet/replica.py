"""The HTTP server of one worker. Everything here runs in the fleet's thread."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from random import Random
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from cachelb_fakes.fleet.apis.anthropic import Messages, encode_body
from cachelb_fakes.fleet.apis.dialect import Dialect, RejectedError, parse_body
from cachelb_fakes.fleet.apis.openai import ChatCompletions, Completions, Embeddings, encode_messages
from cachelb_fakes.fleet.apis.responses import Responses
from cachelb_fakes.fleet.counts import Counts, SeenRequest, Watchers
from cachelb_fakes.fleet.engine import Engine
from cachelb_fakes.fleet.exchange import Exchange, cut, error_answer, json_answer
from cachelb_fakes.fleet.faults import Fault, FaultPlan, FaultRates
from cachelb_fakes.fleet.pages import VERSION_PAGE, event_sources_page, metrics_page, models_page
from cachelb_fakes.fleet.tokens import encode
from cachelb_fakes.sockets import Listener, TcpAddress

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiohttp.abc import AbstractStreamWriter
    from aiohttp.http_parser import RawRequestMessage
    from aiohttp.streams import StreamReader
    from aiohttp.web_protocol import RequestHandler

    from cachelb_fakes.events import EventPublisher
    from cachelb_fakes.fleet.options import WorkerOptions
    from cachelb_fakes.sockets import UnixAddress

_METRICS_HEADERS: Final = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
_LONGEST_STOP_S: Final = 5.0
_DIALECTS: Final[dict[str, type[Dialect]]] = {
    "/v1/completions": Completions,
    "/v1/chat/completions": ChatCompletions,
    "/v1/messages": Messages,
    "/v1/responses": Responses,
    "/v1/embeddings": Embeddings,
}


@dataclass(slots=True)
class Shared:
    """State that the workers of a fleet share."""

    plan: FaultPlan[Fault] = field(default_factory=FaultPlan)  # faults for the next requests to any worker
    rates: FaultRates = field(default_factory=lambda: FaultRates({}))  # for workers without their own
    watchers: Watchers = field(default_factory=Watchers)  # tests that wait for a condition
    engines: dict[str, Engine] = field(default_factory=dict)  # running ones by id, for KV transfers
    sources: dict[str, Engine] = field(default_factory=dict)  # running ones by address, to copy blocks from


class Replica:
    """One engine behind one listening socket."""

    def __init__(
        self, name: str, options: WorkerOptions, shared: Shared, seed: str, address: TcpAddress | UnixAddress
    ) -> None:
        self.name = name
        self.options = options
        self.address = address
        self.counts = Counts()
        self.plan: FaultPlan[Fault] = FaultPlan()
        self.rates: FaultRates | None = None
        self.seen: deque[SeenRequest] = deque(maxlen=options.remember)
        self.stopped = True
        self._refusing = False
        self._shared = shared
        self._rng = Random(seed)
        self._http: web.Server | None = None
        self._listener: Listener | None = None
        self._busy: set[asyncio.Transport] = set()
        self.released = asyncio.Event()  # set and replaced by `release`
        self._engines = self._requests = 0
        self.peer_address = None if options.peers is None else TcpAddress()
        self.events = _publisher(replay=options.kv_replay) if options.kv_events else None
        self.engine = self._new_engine()
        self._calls: dict[str, Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]] = {
            **{path: partial(self._generate, dialect) for path, dialect in _DIALECTS.items()},
            "/v1/messages/count_tokens": self._count_tokens,
            "/tokenize": self._tokenize,
        }
        self._pages: dict[str, Callable[[], web.Response]] = {
            "/v1/models": lambda: json_answer(models_page(options)),
            "/version": lambda: json_answer(VERSION_PAGE),
            "/health": web.Response,
            "/metrics": lambda: web.Response(body=metrics_page(self.engine).encode(), headers=_METRICS_HEADERS),
        }
        if (events := self.events) is not None:
            self._pages["/kv_event_sources"] = lambda: json_answer(event_sources_page(events))

    # --- life ---

    @property
    def listening(self) -> bool:
        """Whether connections are accepted."""
        return self._listener is not None

    async def start(self, *, restart: bool = False) -> None:
        """Come up at the same address; a restart empties cache and metrics. Does nothing if the worker runs."""
        if not self.stopped:
            return
        if restart:
            self.engine = self._new_engine()
        self._http = web.Server(
            self._handle, request_factory=_request, handler_cancellation=True, access_log=None, keepalive_timeout=600
        )
        self.stopped = False
        if self.events is not None:
            self.events.start(restart=restart)
        self._shared.engines[self.engine.engine_id] = self.engine
        self._shared.sources.update(dict.fromkeys(self._addresses(), self.engine))
        self._listen()

    async def stop(self) -> None:
        """Go down as a process that is killed: every connection ends. Does nothing if the worker is down."""
        if self.stopped or self._http is None:
            return
        self.stopped = True
        if self.events is not None:
            self.events.stop()
        del self._shared.engines[self.engine.engine_id]
        for address in self._addresses():
            del self._shared.sources[address]
        await self._close_listener()
        for connection in self._http.connections:
            if connection.transport is not None:
                connection.transport.abort()
        await self._http.shutdown(_LONGEST_STOP_S)
        self.notify()

    def give_back(self) -> None:
        """Give the addresses back."""
        self.address.release()
        if self.peer_address is not None:
            self.peer_address.release()
        if self.events is not None:
            self.events.close()

    async def refuse(self) -> None:
        """Close the listening socket and the idle connections; requests that run go on."""
        self._refusing = True
        await self._close_listener()
        for connection in self._http.connections if self._http is not None else ():
            if connection.transport is not None and connection.transport not in self._busy:
                connection.transport.abort()
        self.notify()

    async def heal(self) -> None:
        """Forget the planned faults and the worker's own rates, let stalled requests go, and listen again."""
        self.plan.clear()
        self.engine.pull_faults.clear()
        self.rates = None
        self.release()
        self._refusing = False
        self._listen()

    def _listen(self) -> None:
        if self._http is None or self.stopped or self._refusing or self._listener is not None:
            return
        self._listener = Listener(self.address.bind(), self._http)
        self.notify()

    async def _close_listener(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.close()

    def _new_engine(self) -> Engine:
        self._engines += 1
        publish = None if self.events is None else self._publish
        return Engine(f"{self.name}-{self._engines}", self.options, self.counts, self._shared.watchers, publish)

    def _addresses(self) -> list[str]:
        """Return where this engine is a source: the addresses of its host memory and of the server."""
        if self.peer_address is None:
            return []
        return [address.url.partition("://")[2] for address in (self.peer_address, self.address)]

    def _publish(self, events: list[dict[str, Any]]) -> None:
        if self.events is not None:
            self.events.publish(*events)

    # --- faults ---

    def draw_fault(self) -> Fault | None:
        """Draw the random fault of a request that arrives."""
        rates = self._shared.rates if self.rates is None else self.rates
        return rates.draw(self._rng)

    def peek_fault(self) -> Fault | None:
        """Return the fault that `take_fault` would return."""
        return self.plan.peek() or self._shared.plan.peek()

    def take_fault(self) -> Fault | None:
        """Return the fault planned for the next request, here or for the fleet."""
        return self.plan.take() or self._shared.plan.take()

    def release(self) -> None:
        """Release the stalled requests."""
        self.released.set()
        self.released = asyncio.Event()

    # --- requests ---

    def notify(self) -> None:
        """Notify waiting tests of a change."""
        self._shared.watchers.notify()

    def request_id(self, given: str | None) -> str:
        """Return the id of an answer without its prefix: the client's ``X-Request-Id`` if there is one."""
        if given is None:
            self._requests += 1
            given = f"{self.name}-{self._requests}"
        return given

    def find_engine(self, engine_id: object) -> Engine | None:
        """Return the fleet's running engine with an id, None without one."""
        return self._shared.engines.get(engine_id) if isinstance(engine_id, str) else None

    def find_source(self, address: str | None) -> Engine | None:
        """Return the fleet's running engine whose host memory is at an address, None without one."""
        return self._shared.sources.get(address) if address is not None else None

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        transport = request.transport
        if transport is None or self.stopped:  # accepted in the moment the worker went down
            cut(transport)
            raise asyncio.CancelledError
        self._busy.add(transport)
        try:
            response = await self._respond(request)
        except RejectedError as error:
            response = error_answer(error)
        finally:
            self._busy.discard(transport)
        if not self.listening:
            response.force_close()
        return response

    async def _respond(self, request: web.BaseRequest) -> web.StreamResponse:
        match request.method, request.path:
            case "POST", path if path in self._calls:
                return await self._calls[path](request)
            case "GET", path if path in self._pages:
                return self._pages[path]()
            case _, path:
                known = path in self._calls or path in self._pages
                status = HTTPStatus.METHOD_NOT_ALLOWED if known else HTTPStatus.NOT_FOUND
                raise RejectedError(status.phrase, status, kind=status.phrase)

    async def _generate(self, dialect: type[Dialect], request: web.BaseRequest) -> web.StreamResponse:
        return await Exchange(self, request, dialect).run()

    async def _count_tokens(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            count = len(encode_body(parse_body(await request.read(), request.headers)))
        except RejectedError as error:
            return error_answer(error, Messages)
        return json_answer({"input_tokens": count, "context_management": {"original_input_tokens": count}})

    async def _tokenize(self, request: web.BaseRequest) -> web.StreamResponse:
        body = parse_body(await request.read(), request.headers)
        prompt = body.get("prompt")
        tokens = (encode(prompt) if isinstance(prompt, str) else encode_messages(body)).tolist()
        facts = {"count": len(tokens), "max_model_len": self.options.kv_tokens}
        return json_answer({**facts, "tokens": tokens, "token_strs": None})


def _publisher(*, replay: bool) -> EventPublisher:
    from cachelb_fakes.events import EventPublisher

    publisher = EventPublisher(replay=replay)
    publisher.open()
    publisher.stop()
    return publisher


def _request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: RequestHandler,
    writer: AbstractStreamWriter,
    task: asyncio.Task[None],
) -> web.BaseRequest:
    # Prompts are as long as a test likes: no limit.
    return web.BaseRequest(message, payload, protocol, writer, task, asyncio.get_running_loop(), client_max_size=0)
