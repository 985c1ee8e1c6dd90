"""A load source that polls the metrics pages of engines in the background."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cachelb.common.arguments import seconds, text_headers, whole
from cachelb.common.extras import need
from cachelb.common.runs import Runs
from cachelb.sources.http import metrics_address
from cachelb.sources.polled_run import PolledRun
from cachelb.sources.poller import PATIENCE_S, Poller

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from cachelb.sources.base import LoadTarget
    from cachelb.stats.polls import WorkerPolls

_log = logging.getLogger(__name__)

_LONGEST_FOLLOW_S = 1.0
_JOIN_S = 2.0
"""Seconds that `stop` waits for the thread. Its waits are cancelled, so only a call of the router can take longer."""

_NAME_THREADS = 32
"""Concurrent host name lookups; the resolver blocks, and a dead name server must not delay other workers."""


@dataclass(frozen=True, slots=True)
class MetricsSourceStats:
    """Statistics of polling.

    Attributes:
        polls: Pages requested, including those of removed workers.
        failures: Pages that were not received, likewise.
        workers: Per key of the workers polled now.

    Example:
        >>> from cachelb.sources import MetricsSource
        >>> stats = MetricsSource().stats()
        >>> stats.polls, stats.failures, stats.workers
        (0, 0, {})
    """

    polls: int
    failures: int
    workers: Mapping[str, WorkerPolls]


@dataclass(kw_only=True, eq=False, repr=False)
class MetricsSource:
    """Polls every worker's metrics page and reports its load to the router.

    One thread polls all workers of the router, as they change, over persistent connections. A slow or dead worker
    delays only itself: it is polled again after 2, 4, 8... intervals, up to 5 seconds. The router passes over a worker
    whose page has no answer three times in a row (`LoadSink.update_health`), and drops what it held once its engine is
    a new process.

    vLLM, SGLang (`--enable-metrics`) and TensorRT-LLM pages are understood; trtllm-serve has its page elsewhere:
    `url=lambda key: key + "/prometheus/metrics"`. A page that names data-parallel ranks is reported as one worker,
    with requests added up and `kv_usage` averaged. Engines need some milliseconds of their front-end process per page,
    so a slow page is polled at most half of the time. Needs the extra `http`.

    Args:
        interval_s: Seconds between two polls of one worker.
        timeout_s: Seconds a worker has for one answer, connecting included, before the page counts as unreadable. With
            less than the default, an answer that comes by then still shows that the worker is there.
        url: Function from a worker's key, with the credentials in it, to the URL of its metrics page, or to None for a
            worker not to be polled. Default: scheme, host and port of the key with `/metrics`; `unix:///path.sock`
            works too.
        headers: Headers to send, such as `Authorization`.
        max_concurrency: Concurrent polls.
        tls: Context that verifies `https` servers. Default: the system's certificates.

    Raises:
        ModuleNotFoundError: aiohttp is not installed.
        TypeError: An argument is of another type.
        ValueError: A number is out of range, or a header has a line break or another control character in it.

    Example:
        >>> from cachelb.sources import MetricsSource
        >>> source = MetricsSource(interval_s=0.1)
        >>> source.stats().polls  # router.attach(source) starts it, router.close() stops it
        0
    """

    interval_s: float = 0.1
    timeout_s: float = PATIENCE_S
    url: Callable[[str], str | None] | None = None
    headers: Mapping[str, str] | None = None
    max_concurrency: int = 256
    tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        """Check the options."""
        need("MetricsSource", "aiohttp")
        self.interval_s, self.timeout_s = seconds("interval_s", self.interval_s), seconds("timeout_s", self.timeout_s)
        whole("max_concurrency", self.max_concurrency, 1)
        self.headers = text_headers(self.headers)
        metrics_address("http://host/metrics", self.headers)  # bad headers are refused here, not per poll
        self._runs: Runs[PolledRun[WorkerPolls]] = Runs()

    def start(self, router: LoadTarget, /) -> None:
        """Start polling.

        Args:
            router: The router to feed; its `keys()` are followed.

        Raises:
            RuntimeError: The source is running already; one source feeds one router.
        """
        slots = asyncio.Semaphore(self.max_concurrency)
        streams = getattr(router, "event_sink", None)  # counts ranks; others than Router have one for each worker
        self._runs.claim(self)
        self._runs.latest = PolledRun(
            "cachelb-metrics",
            router,
            lambda: [(key, 1) for key in tuple(router.keys())] if streams is None else streams.ranks(),
            lambda key, place: Poller(key, place, self, router, slots),
            follow_s=min(self.interval_s, _LONGEST_FOLLOW_S),
            join_s=_JOIN_S,
            name_threads=_NAME_THREADS,
            log=_log,
        )
        self._runs.latest.start()

    def stop(self) -> None:
        """Stop polling: close every connection and wait for the thread. Idempotent."""
        self._runs.stop()

    def stats(self) -> MetricsSourceStats:
        """Return the statistics of polling.

        Returns:
            Counters since the start; all zero before it.
        """
        run = self._runs.latest
        return MetricsSourceStats(*((0, 0, {}) if run is None else run.totals()))

    def _polls(self) -> Mapping[str, WorkerPolls]:
        return self.stats().workers
