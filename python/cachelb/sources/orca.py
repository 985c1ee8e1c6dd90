"""Load reports in response headers (ORCA), which engines add on request.

Send `endpoint-load-metrics-format: JSON` (or TEXT) with the request; vLLM answers with `endpoint-load-metrics`, which
carries `kv_cache_usage_perc` and `num_requests_waiting` of its first data-parallel rank. It needs no poll and is as
fresh as the response headers. The report has no running requests, so it does not show finished ones: poll for that.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import cast

from cachelb.errors import CachelbError
from cachelb.sources.base import LoadReport

_HEADER = "endpoint-load-metrics"
_NAMED = "named_metrics."
_LARGEST = 2.0**53


class OrcaError(CachelbError, ValueError):
    """A malformed load-report header; the message has the reason.

    Example:
        >>> from cachelb.sources import OrcaError, parse_orca
        >>> try:
        ...     parse_orca({"endpoint-load-metrics": "JSON {"})
        ... except OrcaError as error:
        ...     print(error)
        endpoint-load-metrics: not JSON: Expecting property name enclosed in double quotes at column 2
    """


def parse_orca(headers: Mapping[str, str] | Iterable[tuple[str | bytes, str | bytes]]) -> LoadReport | None:
    """Read the load report that came with a response.

    Known names are `num_requests_running`, `num_requests_waiting`, and `kv_cache_usage_perc` or `kv_cache_utilization`;
    others are ignored, as is the `named_metrics.` in front of them. A value other than a number from 0 up is unknown.

    Args:
        headers: Response headers as a mapping or as pairs, with names in any case.

    Returns:
        The report, or None if the response carries none.

    Raises:
        OrcaError: The header is malformed. A gateway can count it and go on.

    Example:
        >>> from cachelb.sources import parse_orca
        >>> header = "TEXT named_metrics.kv_cache_usage_perc=0.25, named_metrics.num_requests_waiting=3.0"
        >>> report = parse_orca({"Endpoint-Load-Metrics": header})
        >>> report.waiting, report.kv_usage, report.running
        (3, 0.25, None)
    """
    for name, value in _pairs(headers):
        if name.lower() == _HEADER:
            return _report(_read(value.strip()))
    return None


def _pairs(headers: Mapping[str, str] | Iterable[tuple[str | bytes, str | bytes]]) -> Iterator[tuple[str, str]]:
    """Return headers as pairs of text; ASGI servers give bytes."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    for name, value in cast("Iterable[tuple[str | bytes, str | bytes]]", pairs):
        yield (
            name.decode("latin-1") if isinstance(name, bytes) else name,
            value.decode("latin-1") if isinstance(value, bytes) else value,
        )


def _read(header: str) -> dict[str, float]:
    """Read the header by the format its first word names."""
    form, _, body = header.partition(" ")
    match form.upper():
        case "TEXT":
            return _text(body)
        case "JSON":
            return _json(body)
        case _:
            raise OrcaError(f"{_HEADER}: it must begin with TEXT or JSON, got {form[:20]!r}")


def _text(body: str) -> dict[str, float]:
    """Read `name=value, name=value`; a colon may stand for the equals sign."""
    values: dict[str, float] = {}
    for entry in filter(None, (part.strip() for part in body.split(","))):
        name, sign, number = entry.partition("=") if "=" in entry else entry.partition(":")
        try:
            values[name.strip().removeprefix(_NAMED)] = float(number)
        except ValueError:
            raise OrcaError(f"{_HEADER}: expected name=number, got {entry[:60]!r}") from None
        if not sign or not name.strip():
            raise OrcaError(f"{_HEADER}: expected name=number, got {entry[:60]!r}")
    return values


def _json(body: str) -> dict[str, float]:
    """Read `{"named_metrics": {name: number}}`."""
    try:
        document = json.loads(body)
    except json.JSONDecodeError as error:
        raise OrcaError(f"{_HEADER}: not JSON: {error.msg} at column {error.colno}") from error
    except (ValueError, RecursionError) as error:
        raise OrcaError(f"{_HEADER}: not JSON: {type(error).__name__}") from error
    if not isinstance(document, dict):
        raise OrcaError(f"{_HEADER}: expected a JSON object, got {type(document).__name__}")
    named = document.get("named_metrics", document.get("namedMetrics", {}))
    if not isinstance(named, dict):
        raise OrcaError(f"{_HEADER}: named_metrics must be a JSON object, got {type(named).__name__}")
    values: dict[str, float] = {}
    for name, value in named.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise OrcaError(f"{_HEADER}: {name[:60]!r} must be a number, got {type(value).__name__}")
        values[name] = float(value) if abs(value) <= _LARGEST else math.inf
    return values


def _report(values: Mapping[str, float]) -> LoadReport:
    """Take the names that are known."""
    usage = _usable(values.get("kv_cache_usage_perc", values.get("kv_cache_utilization")))
    return LoadReport(
        running=_count(values.get("num_requests_running")),
        waiting=_count(values.get("num_requests_waiting")),
        kv_usage=None if usage is None else min(usage, 1.0),
    )


def _usable(value: float | None) -> float | None:
    """Return a number from 0 up, or None."""
    return value if value is not None and 0.0 <= value <= _LARGEST else None


def _count(value: float | None) -> int | None:
    """Return a whole number from 0 up, or None."""
    usable = _usable(value)
    return None if usable is None else round(usable)
