"""The pages for operators: metrics, the state of the router, and captures of traffic."""

from __future__ import annotations

import dataclasses
import json
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import prometheus_client

from cachelb.metrics import CONTENT_TYPE, PrometheusCollector
from cachelb.metrics.family import Family
from cachelb.records.capture import Tap, check_limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from prometheus_client import Metric

    from cachelb.router import Router
    from cachelb_gateway.serve.gateway import Gateway

    Page: TypeAlias = tuple[int, str, bytes]
    More: TypeAlias = Callable[[bool], bytes | None]

_INTERVAL_S: Final = 0.25
_LIMITS: Final = {"seconds": 300.0, "linger_s": 60.0, "max_bytes": 256 << 20}
_PATHS: Final = frozenset({"/health", "/ready", "/metrics", "/dump", "/capture"})


class Operators:
    """Answers the requests at the address for operators; the server calls it on threads of its own."""

    def __init__(self, router: Router[Any], gateway: Gateway) -> None:
        """Make no page yet."""
        self._router = router
        self._registry = prometheus_client.CollectorRegistry()
        self._registry.register(_Collector(router, gateway))
        self.may_capture = False

    def answer(self, method: str, path: str, body: bytes) -> Page | More:
        """Return a whole page, or a function that returns its parts."""
        match (method, path):
            case ("GET", "/metrics"):
                return 200, CONTENT_TYPE, prometheus_client.generate_latest(self._registry)
            case ("GET", "/dump"):
                return _page(200, self._dump())
            case ("POST", "/capture"):
                return self._capture(body)
        return _error(405, "method not allowed") if path in _PATHS else _error(404, "route not found")

    def _capture(self, body: bytes) -> Page | More:
        """Begin a capture. Records that its client is too slow for are counted and left out."""
        if not self.may_capture:
            return _error(403, "captures are off: start cachelb serve with --capture")
        try:
            tap = Tap(self._router.records, *check_limits(**_read_limits(body)))
        except RuntimeError as error:
            return _error(409, str(error))
        except (TypeError, ValueError, OverflowError) as error:
            return _error(400, str(error))
        return partial(_next, tap)

    def _dump(self) -> dict[str, Any]:
        stats = self._router.stats()
        document = _plain(dataclasses.asdict(dataclasses.replace(stats, workers=[])))
        workers = [{"endpoint": row.key, **_plain(dataclasses.asdict(row))} for row in stats.workers]
        del document["workers"]
        return {"workers": workers, "stats": document}


class _Collector(PrometheusCollector):
    """A router and its gateway."""

    def __init__(self, router: Router[Any], gateway: Gateway) -> None:
        super().__init__(router, lambda: _families(gateway))
        self._gateway = gateway

    def collect(self) -> Iterator[Metric]:
        yield from super().collect()
        series = self._gateway.series
        labels = ("worker", "model")
        text = "Seconds to the first byte of streams."
        rows = [(each[:2], each.first_byte_seconds) for each in series]
        yield self._histogram("gateway_first_byte_seconds", text, rows, labels)
        text = "Seconds to the end of complete answers."
        rows = [(each[:2], each.request_seconds) for each in series]
        yield self._histogram("gateway_request_seconds", text, rows, labels)


def _families(gateway: Gateway) -> Iterator[Family]:
    series = gateway.series
    answers = [
        ((each.worker, each.model, str(status)), float(count))
        for each in series
        for status, count in each.statuses.items()
    ]
    text = "Requests by the worker and the model that answered, and status; 0 for those without an answer."
    yield Family("gateway_requests", "counter", text, "{request}", ("worker", "model", "status"), answers)
    size = [
        ((each.worker, each.model, direction), float(count))
        for each in series
        for direction, count in (("in", each.bytes_in), ("out", each.bytes_out))
    ]
    text = "Bytes of request bodies (in) and of answers (out)."
    yield Family("gateway_bytes", "counter", text, "By", ("worker", "model", "direction"), size)
    events = [((name,), float(count)) for name, count in gateway.counts.items()]
    text = "Requests, attempts and connections by what became of them; one may be several."
    yield Family("gateway_events", "counter", text, "{event}", ("event",), events)
    text = "Requests that the gateway serves."
    yield Family("gateway_open_requests", "gauge", text, "{request}", (), [((), gateway.open_requests)])
    text = "Bytes of request bodies that the gateway holds."
    yield Family("gateway_held_bytes", "gauge", text, "By", (), [((), gateway.held_bytes)])


def _next(tap: Tap, is_over: bool) -> bytes | None:  # noqa: FBT001 - the server's call
    """Return the next part of a capture, None at its end; it ends early where its client, or the server, has."""
    if tap.stats.ended is not None:
        return None
    if tap.stats.bytes and not is_over:
        time.sleep(_INTERVAL_S)
    return tap.read("stopped" if is_over else None)


def _read_limits(body: bytes) -> dict[str, Any]:
    try:
        limits = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        raise ValueError("the body is no JSON") from None
    if not isinstance(limits, dict):
        raise ValueError("the body must be an object")  # noqa: TRY004 - of a client
    unknown = sorted(limits.keys() - _LIMITS.keys())
    if unknown:
        raise ValueError(f"a capture has no setting {unknown[0]!r}; it has {', '.join(_LIMITS)}")
    return {**_LIMITS, **limits}


def _page(status: int, document: Mapping[str, Any]) -> Page:
    return status, "application/json", json.dumps(document).encode()


def _error(status: int, message: str) -> Page:
    return _page(status, {"error": message})


def _plain(value: Any) -> Any:  # noqa: ANN401 - statistics of any type
    """Turn statistics into values that JSON has: keys of several parts are joined."""
    if isinstance(value, dict):
        return {"/".join(key) if isinstance(key, tuple) else str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and (value != value or value in {float("inf"), float("-inf")}):  # noqa: PLR0124 - NaN
        return None
    return value
