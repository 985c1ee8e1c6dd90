"""Load sources: load reports of the engines, delivered to the router.

Example:
    >>> from cachelb.sources import MetricsSource
    >>> source = MetricsSource(interval_s=0.1)  # router.attach(source)
"""

from __future__ import annotations

from cachelb.sources.base import LoadReport, LoadSink, LoadTarget, Source
from cachelb.sources.metrics import MetricsSource, MetricsSourceStats
from cachelb.sources.orca import OrcaError, parse_orca
from cachelb.sources.prometheus_text import MetricsPage, read_metrics_page
from cachelb.stats.polls import WorkerPolls

__all__ = [
    "LoadReport",
    "LoadSink",
    "LoadTarget",
    "MetricsPage",
    "MetricsSource",
    "MetricsSourceStats",
    "OrcaError",
    "Source",
    "WorkerPolls",
    "parse_orca",
    "read_metrics_page",
]
