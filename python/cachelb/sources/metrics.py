"""A load source that polls the metrics pages of engines in the background."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cachelb.arguments import require, seconds, whole
from cachelb.extras import need
from cachelb.runs import Runs
from cachelb.sources.http import address_of, default_metrics_url, metrics_address
from cachelb.sources.poller import Poller, PollSettings, WorkerPolls

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from cachelb.sources.base import LoadTarget

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
        failures: Pages that were not received or unreadable, likewise.
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


class MetricsSource:
    """Polls every worker's metrics page and reports its load to the router.

    One thread polls all workers of the router, as they change, over persistent connections. A slow or dead worker
    delays only itself: it is polled again after 2, 4, 8... intervals, up to 5 seconds.

    vLLM, SGLang (`--enable-metrics`) and TensorRT-LLM pages are understood; trtllm-serve has its page elsewhere:
    `url=lambda key: key + "/prometheus/metrics"`. A page that names data-parallel ranks is reported as one worker,
    with requests added up and `kv_usage` averaged. Engines need some milliseconds of their front-end process per page,
    so a slow page is polled at most half of the time. Needs `pip install 'cachelb[http]'`.

    Args:
        interval_s: Seconds between two polls of one worker.
        timeout_s: Seconds a worker has for one answer, connecting included.
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

    def __init__(
        self,
        *,
        interval_s: float = 0.1,
        timeout_s: float = 1.0,
        url: Callable[[str], str | None] | None = None,
        headers: Mapping[str, str] | None = None,
        max_concurrency: int = 256,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        need("MetricsSource", "aiohttp")
        interval_s, timeout_s = seconds("interval_s", interval_s), seconds("timeout_s", timeout_s)
        whole("max_concurrency", max_concurrency, 1)
        headers = {} if headers is None else headers
        require("headers", headers, Mapping, "a mapping of names to values")
        for name, text in headers.items():
            require("a header's name", name, str, "text")
            require(f"header {name!r}", text, str, "text")
        self._settings = PollSettings(interval_s, timeout_s, url or default_metrics_url, dict(headers or {}), tls)
        self._max_concurrency = max_concurrency
        metrics_address("http://host/metrics", self._settings.headers)  # bad headers are refused here, not per poll
        self._runs: Runs[_Run] = Runs()

    def start(self, router: LoadTarget, /) -> None:
        """Start polling.

        Args:
            router: The router to feed; its `keys()` are followed.

        Raises:
            RuntimeError: The source is running already; one source feeds one router.
        """
        self._runs.claim(self)
        self._runs.latest = _Run(self._settings, self._max_concurrency, router)
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
        return MetricsSourceStats(0, 0, {}) if run is None else run.stats()


def _log_crash(task: asyncio.Task[None]) -> None:
    """Log that a worker is no longer polled; only an error of this package ends a task by itself."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("polling of a worker has ended", exc_info=error)


class _Run:
    """One run of the source's thread, from start to stop."""

    def __init__(self, settings: PollSettings, max_concurrency: int, router: LoadTarget) -> None:
        self.pid = os.getpid()
        self._settings = settings
        self._max_concurrency = max_concurrency
        self._router = router
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._work, name="cachelb-metrics", daemon=True)
        self._main: asyncio.Task[None] | None = None
        self._pollers: dict[str, Poller] = {}
        self._past_polls = 0
        self._past_failures = 0
        self._is_lost = False

    def start(self) -> None:
        """Start the thread."""
        self._main = self._loop.create_task(self._follow())
        self._thread.start()

    def stop(self) -> None:
        """Cancel everything and wait for the thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the thread has ended by itself
            self._loop.call_soon_threadsafe(self._cancel)
        self._thread.join(_JOIN_S)
        if self._thread.is_alive():
            _log.warning("the polling thread is still inside a call of the router; it ends when that returns")

    def stats(self) -> MetricsSourceStats:
        """Return the counters."""
        workers = {key: poller.stats for key, poller in list(self._pollers.items())}
        return MetricsSourceStats(
            polls=self._past_polls + sum(worker.polls for worker in workers.values()),
            failures=self._past_failures + sum(worker.failures for worker in workers.values()),
            workers=workers,
        )

    def _cancel(self) -> None:
        """Ask the main task to end, on the loop's thread."""
        if self._main is not None:
            self._main.cancel()

    def _work(self) -> None:
        """Run the loop until cancelled."""
        assert self._main is not None  # noqa: S101 - set before the thread starts
        names = ThreadPoolExecutor(_NAME_THREADS, thread_name_prefix="cachelb-metrics-names")
        self._loop.set_default_executor(names)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                self._loop.run_until_complete(self._main)
        finally:
            names.shutdown(wait=False, cancel_futures=True)  # a hanging name server must not hold up `stop`
            self._loop.close()

    async def _follow(self) -> None:
        """Keep one task per worker of the router."""
        slots = asyncio.Semaphore(self._max_concurrency)
        tasks: dict[str, asyncio.Task[None]] = {}
        leaving: set[asyncio.Task[None]] = set()
        try:
            while True:
                addresses = self._addresses()
                for key in [key for key in tasks if addresses.get(key) != self._pollers[key].address]:
                    task = tasks.pop(key)
                    task.cancel()
                    leaving.add(task)
                    task.add_done_callback(leaving.discard)
                    gone = self._pollers.pop(key).stats
                    self._past_polls += gone.polls
                    self._past_failures += gone.failures
                for key in addresses.keys() - tasks.keys():
                    poller = self._pollers[key] = Poller(key, addresses[key], self._settings, self._router)
                    tasks[key] = asyncio.create_task(poller.poll_forever(slots))
                    tasks[key].add_done_callback(_log_crash)
                await asyncio.sleep(min(self._settings.interval_s, _LONGEST_FOLLOW_S))
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), *leaving, return_exceptions=True)

    def _addresses(self) -> dict[str, str]:
        """Return the addresses of the router's workers, or the last known ones if that fails."""
        addresses = {}
        try:
            for key in tuple(self._router.keys()):
                with contextlib.suppress(KeyError):  # removed a moment ago
                    addresses[key] = address_of(self._router, key)
        except Exception:  # noqa: BLE001 - logged; a failing router must not end polling
            if not self._is_lost:
                _log.exception("the router does not name its workers; polling goes on with the ones known")
            self._is_lost = True
            return {key: poller.address for key, poller in self._pollers.items()}
        self._is_lost = False
        return addresses
