"""A router's counters for Prometheus and OpenTelemetry, read at collection time, without any cost per request.

Both export the same families, under `cachelb_` or `cachelb.`; `cachelb.metrics.families` lists them. The series of a
worker vanish with it. Labels hold keys of workers and names of policies, never content of a prompt or a session.

Example:
    >>> import cachelb
    >>> from cachelb.metrics import PrometheusCollector
    >>> from prometheus_client import CollectorRegistry, generate_latest
    >>> registry = CollectorRegistry()
    >>> router = cachelb.Router(["gpu0"])
    >>> registry.register(PrometheusCollector(router))
    >>> with router.select_worker(tokens=range(100)):
    ...     page = generate_latest(registry).decode()
    >>> print(*(line for line in page.splitlines() if line.startswith("cachelb_inflight")))
    cachelb_inflight{dp_rank="",worker="gpu0"} 1.0
"""

from __future__ import annotations

from typing import Final

from cachelb.metrics.opentelemetry import instrument
from cachelb.metrics.prometheus import PrometheusCollector

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""Content-Type of the page that `prometheus_client.generate_latest` writes; Prometheus 3 refuses pages without one."""

__all__ = ["CONTENT_TYPE", "PrometheusCollector", "instrument"]
