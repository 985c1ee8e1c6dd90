"""A collector for Prometheus registries."""

from __future__ import annotations

from itertools import accumulate, chain
from typing import TYPE_CHECKING

from cachelb.common.extras import need
from cachelb.metrics.families import SELECTION, families

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prometheus_client import Metric

    from cachelb.metrics.families import Measured
    from cachelb.metrics.family import Family
    from cachelb.types import Histogram


class PrometheusCollector:
    """Shows a router on a metrics page. Needs the extra `cachelb[prometheus]`.

    Register it once: `prometheus_client.REGISTRY.register(PrometheusCollector(router))`. The router is read when the
    page is. For several routers in one process, use a registry for each.

    Example:
        >>> import cachelb
        >>> collector = PrometheusCollector(cachelb.Router(["gpu0"]))
        >>> [metric.name for metric in collector.collect()][:2]
        ['cachelb_funnel_requests', 'cachelb_funnel_tokens']
    """

    def __init__(self, router: Measured, more: Callable[[], Iterable[Family]] = tuple) -> None:
        """Build a collector.

        Args:
            router: The router to show.
            more: Returns families to show beside it, each time.

        Raises:
            ModuleNotFoundError: The extra is not installed.
        """
        need("PrometheusCollector", "prometheus_client")
        import prometheus_client.core

        self._core = prometheus_client.core
        self._router = router
        self._more = more

    def collect(self) -> Iterator[Metric]:
        """Read the router; called by the registry.

        Yields:
            Every metric.
        """
        stats = self._router.stats()
        for family in chain(families(stats), self._more()):
            kind = self._core.CounterMetricFamily if family.kind == "counter" else self._core.GaugeMetricFamily
            metric: Metric = kind(f"cachelb_{family.name}", family.help, labels=family.labels)
            for labels, value in family.rows:
                metric.add_metric(labels, value)  # type: ignore[attr-defined]  # both kinds have it, Metric has not
            yield metric
        yield self._histogram(*SELECTION, [((), stats.select_seconds)])

    def _histogram(
        self, name: str, text: str, rows: Iterable[tuple[tuple[str, ...], Histogram]], labels: tuple[str, ...] = ()
    ) -> Metric:
        metric = self._core.HistogramMetricFamily(f"cachelb_{name}", text, labels=labels)
        for values, found in rows:
            bounds = [*map(str, found.bounds), "+Inf"]
            metric.add_metric(values, list(zip(bounds, map(float, accumulate(found.counts)), strict=True)), found.sum)
        return metric
