"""production-stack: a routing logic for its router, and the middleware that detects the end of requests.

Its router has a closed list of routing logics, so this one takes the place of the configured one, in `install`, and is
of a class that the router knows to give the request's body to. Its callback after a request comes only if the stream
ended well. So the application is wrapped: the answer passes by on its way to the client.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any

from cachelb.answers import PassingAnswer, retry_after
from cachelb.decision import Decision
from cachelb.integrations.offered import Guest
from cachelb.types import RequestArguments

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_log = logging.getLogger("cachelb.integrations.production_stack")

_SCOPE_KEY = "cachelb.attempts"
_BAD_GATEWAY, _FIRST_ERROR = 502, 400


class CachelbRouter(Guest):
    """A routing logic for the router of production-stack that picks the engine that holds most of the prompt.

    For that router it is a `vllm_router.routers.routing_logic.PrefixAwareRouter`. A worker is an engine,
    and its key is the engine's URL. Only engines that serve the model and are not asleep are offered to it, and, when a
    request fails over, only those that did not fail. Use `install`.

    Args:
        session_key: Header or field that names the conversation, for the router's log and for policies. None takes the
            conventions of clients, and leaves it out of the log.
        forget_after_s: Seconds after which an engine that is no longer offered is forgotten.
        clock: Function that returns monotonic seconds.
        **router_options: Options of `cachelb.Router`, such as `policy`.

    Raises:
        ModuleNotFoundError: `vllm_router` is not there: production-stack is installed from its repository.
        TypeError: An option has the wrong type, or there is no such option.
        ValueError: An option is out of range.

    Attributes:
        router: The router: its statistics, its workers, and `attach` for sources and sinks.
        session_key: The option.
        max_instance_failover_reroute_attempts: Most attempts of production-stack to reroute a request that failed
            before the answer began.
        fallbacks: Times the engine with the fewest requests was taken instead, by reason: "no-worker", no engine can be
            picked; "error", an error, which is logged.
    """

    def __new__(cls, **_options: Any) -> CachelbRouter:  # noqa: ANN401, PYI034 - of a class that is made here
        """Make an instance of the class that is also production-stack's, without its registry of single instances."""
        return object.__new__(_hosted(cls))

    def __init__(
        self,
        *,
        session_key: str | None = None,
        forget_after_s: float = 3600.0,
        clock: Callable[[], float] = time.monotonic,
        **router_options: Any,  # noqa: ANN401 - options of any type
    ) -> None:
        super().__init__(forget_after_s=forget_after_s, clock=clock, options=router_options)
        self.session_key = session_key
        self.max_instance_failover_reroute_attempts = 0

    async def route_request(
        self,
        endpoints: Sequence[Any],
        engine_stats: Mapping[str, Any],
        request_stats: Mapping[str, Any],
        request: Any,  # noqa: ANN401 - starlette's
        request_json: dict[str, Any],
    ) -> str:
        """Pick an engine and book it. Called by production-stack, once for each attempt of a request.

        Args:
            endpoints: The engines that may serve the request.
            engine_stats: Not used: `MetricsSource` is fresher.
            request_stats: Counts of production-stack, for the fallback.
            request: The request.
            request_json: Its body.

        Returns:
            URL of the engine.
        """
        del engine_stats
        try:
            return self._pick(endpoints, request, await request.body(), request_json)
        except Exception as error:  # noqa: BLE001 - an exception here fails the request; counted and logged
            self._left(error, _log)
        url: str = self._qps_routing(endpoints, request_stats)  # type: ignore[attr-defined]
        return url

    def _pick(self, endpoints: Sequence[Any], request: Any, body: bytes, fields: dict[str, Any]) -> str:  # noqa: ANN401
        urls = [endpoint.url for endpoint in endpoints]
        self._see(urls, self._clock())
        attempts: _Attempts = request.scope.setdefault(_SCOPE_KEY, _Attempts())
        attempts.failed(_BAD_GATEWAY)  # a new attempt: the previous pick did not answer
        asked: RequestArguments = {"body": body, "path": request.url.path, "headers": request.headers}
        if self.session_key is not None:
            session = self.extract_session_id(request, fields)  # type: ignore[attr-defined]
            if isinstance(session, str) and session.isascii():
                asked["session"] = session
        asked["among"] = urls
        attempts.decision = self.router.select_worker(**asked)
        return attempts.decision.worker


class FollowRequests:
    """ASGI middleware that reports the end of each request to the router, read from the passing answer.

    Args:
        app: The application.
        logic: The routing logic, whose sources are stopped when the application shuts down.
    """

    def __init__(self, app: App, logic: CachelbRouter) -> None:
        self._app = app
        self._logic = logic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the life of the application.

        Args:
            scope: Its ASGI scope.
            receive: Messages of the client.
            send: Messages to it.
        """
        if scope["type"] == "lifespan":
            with self._logic.router:
                await self._app(scope, receive, send)
        elif scope["type"] != "http":
            await self._app(scope, receive, send)
        else:
            await self._follow(scope, receive, send)

    async def _follow(self, scope: Scope, receive: Receive, send: Send) -> None:
        attempts = scope[_SCOPE_KEY] = _Attempts()

        async def pass_by(message: MutableMapping[str, Any]) -> None:
            attempts.see(message)
            try:
                await send(message)
            except OSError:
                attempts.given_up()  # the client left
                raise

        try:
            await self._app(scope, receive, pass_by)
        except asyncio.CancelledError:
            attempts.given_up()
            raise
        except Exception as error:
            attempts.failed(error)
            raise
        attempts.given_up()  # unless the answer is complete: the client left, and Starlette does not report it


class _Attempts:
    """The booking of one request, and the part of its answer seen so far."""

    def __init__(self) -> None:
        self.decision: Decision[str] | None = None
        self._answer: PassingAnswer | None = None

    def see(self, message: Mapping[str, Any]) -> None:
        """Look at a part of the answer."""
        decision = self.decision
        if decision is None:
            return
        if message["type"] == "http.response.start":
            if message["status"] >= _FIRST_ERROR:
                headers = {
                    name.decode("latin-1"): value.decode("latin-1") for name, value in message.get("headers", ())
                }
                decision.on_error(message["status"], retry_after_s=retry_after(headers))
        elif message["type"] == "http.response.body":
            if self._answer is None:
                self._answer = PassingAnswer(decision)
            self._answer.feed(message.get("body", b""))
            if not message.get("more_body"):
                self._answer.end()

    def failed(self, error: BaseException | int) -> None:
        """Release the booking, if any; an end that was reported before stays."""
        if self.decision is not None:
            self.decision.on_error(error)

    def given_up(self) -> None:
        """Release the booking, if any; an end that was reported before stays."""
        if self.decision is not None:
            self.decision.cancel()


def install(app: Any, **options: Any) -> CachelbRouter:  # noqa: ANN401 - FastAPI's, which is not imported here
    """Put the routing logic into production-stack's application, in place of the configured one.

    Call it between `initialize_all(app, args)` and the start of the server. The configured failover and session key
    stay. A change of a dynamic configuration restores its own routing logic.

    Args:
        app: `vllm_router.app.app`.
        **options: Options of `CachelbRouter`.

    Returns:
        The routing logic.

    Raises:
        ModuleNotFoundError: `vllm_router` is not there: production-stack is installed from its repository.
        TypeError: An option has the wrong type, or there is no such option.
        ValueError: An option is out of range.
    """
    before = getattr(app.state, "router", None)
    options.setdefault("session_key", getattr(before, "session_key", None))
    logic = CachelbRouter(**options)
    logic.max_instance_failover_reroute_attempts = getattr(before, "max_instance_failover_reroute_attempts", 0)
    app.add_middleware(FollowRequests, logic=logic)
    app.state.router = logic
    return logic


def _hosted(cls: type[CachelbRouter]) -> type[CachelbRouter]:
    """Return the class that production-stack takes for one of its own."""
    try:
        host: Any = importlib.import_module("vllm_router.routers.routing_logic")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "vllm_router":
            raise
        raise ModuleNotFoundError(
            f"{cls.__name__} needs production-stack's router: "
            "pip install 'vllm-router @ git+https://github.com/vllm-project/production-stack'",
            name="vllm_router",
        ) from None
    theirs = host.PrefixAwareRouter
    made: type[CachelbRouter] = type(theirs)(cls.__name__, (cls, theirs), {"__module__": cls.__module__})
    return made
