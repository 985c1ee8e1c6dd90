"""The admin application: metrics, the state of the router, and captures of traffic."""

from __future__ import annotations

import asyncio
import dataclasses
import hmac
import json
from typing import TYPE_CHECKING, Any, Final

from cachelb.extras import need
from cachelb.metrics import CONTENT_TYPE, PrometheusCollector
from cachelb.requests import RequestError, read_request
from cachelb.serve.asgi import ClientLeft, body_chunks, send_json, send_whole
from cachelb.serve.capture import send_capture
from cachelb.serve.readiness import Readiness

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cachelb.router import Router
    from cachelb.serve.asgi import Receive, Scope, Send

_MOST_BODY_BYTES: Final = 64 << 10
_MOST_OPEN: Final = 256
_LEAST_TOKEN: Final = 16
_PATHS: Final = frozenset({"/health", "/ready", "/metrics", "/dump", "/capture"})


class Admin:
    """An ASGI application for operators.

    It has `/health`, `/ready`, `/metrics` and `/dump`, and if it is allowed to, `/capture`. Unlike a gateway's, its
    answers name workers: serve it on the loopback, or with a token.

    Attributes:
        readiness: What `/ready` answers.

    Example:
        >>> import asyncio, cachelb
        >>> from cachelb.serve import Admin
        >>> async def status(headers):
        ...     sent = []
        ...     async def send(message):
        ...         sent.append(message)
        ...     admin = Admin(cachelb.Router(), token="of sixteen characters")
        ...     await admin({"type": "http", "method": "GET", "path": "/health", "headers": headers}, None, send)
        ...     return sent[0]["status"]
        >>> asyncio.run(status([])), asyncio.run(status([(b"authorization", b"Bearer of sixteen characters")]))
        (401, 200)
    """

    def __init__(
        self,
        router: Router[Any],
        *,
        token: str | None = None,
        readiness: Readiness | None = None,
        capture: bool = False,
    ) -> None:
        """Build the application.

        Args:
            router: The router.
            token: Text of 16 characters or more that requests carry as `Authorization: Bearer`; None asks for none.
            readiness: That of the gateway, if there is one.
            capture: Whether `/capture` may record live traffic, as `cachelb.records.Capture` does.

        Raises:
            ModuleNotFoundError: The extra `cachelb[serve]` is not installed.
            ValueError: The token is too short.
        """
        need("cachelb.serve", "prometheus_client")
        import prometheus_client

        if token is not None and len(token) < _LEAST_TOKEN:
            raise ValueError(f"token must have {_LEAST_TOKEN} characters or more, got {len(token)}")
        self._router = router
        self._expected = None if token is None else b"Bearer " + token.encode()
        self._registry = prometheus_client.CollectorRegistry()
        self._registry.register(PrometheusCollector(router))
        self._open = 0
        self._may_capture = capture
        self.readiness = Readiness(router) if readiness is None else readiness

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Args:
            scope: Of ASGI, like the others.
            receive: Awaited for the parts of the body.
            send: Awaited with the parts of the answer.
        """
        refused = self._refuse(scope)
        if refused is not None:
            await send_json(send, refused[0], {"error": refused[1]}, [(b"connection", b"close")])
            return
        self._open += 1
        try:
            await self._answer(scope["method"], scope["path"], receive, send)
        except ClientLeft:
            return
        except RequestError as error:
            await send_json(send, error.status, {"error": str(error)}, [(b"connection", b"close")])
        except (TypeError, ValueError, OverflowError) as error:  # limits that a capture refuses
            await send_json(send, 400, {"error": str(error)})
        finally:
            self._open -= 1

    def _refuse(self, scope: Scope) -> tuple[int, str] | None:
        headers = dict(scope["headers"])
        if self._expected is not None:
            if not hmac.compare_digest(headers.get(b"authorization", b""), self._expected):
                return 401, "a bearer token is required"
        elif b"origin" in headers:  # a page in a browser on this machine
            return 403, "requests of browsers need a token"
        return (503, "too many requests are open") if self._open >= _MOST_OPEN else None

    async def _answer(self, method: str, path: str, receive: Receive, send: Send) -> None:
        match (method, path):
            case ("GET" | "HEAD", "/health" | "/ready"):
                await self.readiness.answer(path, send)
            case ("GET", "/metrics"):
                import prometheus_client

                page = await asyncio.to_thread(prometheus_client.generate_latest, self._registry)
                await send_whole(send, 200, page, [(b"content-type", CONTENT_TYPE.encode())])
            case ("GET", "/dump"):
                await send_json(send, 200, await asyncio.to_thread(self._dump))
            case ("POST", "/capture"):
                if not self._may_capture:
                    raise RequestError(403, "captures are off: start cachelb serve with --capture")
                await send_capture(self._router, self.readiness, await _fields(receive), receive, send)
            case _:
                status, text = (405, "method not allowed") if path in _PATHS else (404, "route not found")
                await send_json(send, status, {"error": text})

    def _dump(self) -> dict[str, Any]:
        stats = self._router.stats()
        document = _plain(dataclasses.asdict(dataclasses.replace(stats, workers=[])))
        workers = [{"endpoint": row.key, **_plain(dataclasses.asdict(row))} for row in stats.workers]
        del document["workers"]
        return {"workers": workers, "stats": document}


async def _fields(receive: Receive) -> Mapping[str, Any]:
    body = await read_request(body_chunks(receive), max_bytes=_MOST_BODY_BYTES)
    try:
        fields = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        raise RequestError(400, "the body is no JSON") from None
    if not isinstance(fields, dict):
        raise RequestError(400, "the body must be an object")
    return fields


def _plain(value: Any) -> Any:  # noqa: ANN401 - statistics of any type
    """Turn statistics into values that JSON has: keys of several parts are joined."""
    if isinstance(value, dict):
        return {"/".join(key) if isinstance(key, tuple) else str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and (value != value or value in {float("inf"), float("-inf")}):  # noqa: PLR0124 - NaN
        return None
    return value
