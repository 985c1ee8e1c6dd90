"""Polls the metrics page of one worker."""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import replace
from typing import TYPE_CHECKING

from cachelb._core import worker_name
from cachelb.sources.http import PageError, default_metrics_url, metrics_address
from cachelb.sources.polled_run import backoff_s
from cachelb.sources.prometheus_text import read_metrics_page
from cachelb.sources.restarts import Restarts
from cachelb.sources.throughput import Throughput
from cachelb.stats.polls import WorkerPolls

if TYPE_CHECKING:
    from cachelb.sources.base import LoadTarget
    from cachelb.sources.http import Address
    from cachelb.sources.metrics import MetricsSource
    from cachelb.sources.pages import PageClient
    from cachelb.sources.polled_run import Place
    from cachelb.sources.prometheus_text import MetricsPage

_log = logging.getLogger("cachelb.sources.metrics")
_NO_FACTS = (None, None, None)

PATIENCE_S = 6.0
"""Seconds that an answer is waited for in any case: busy engines take five, and one that hangs must be recognised."""

_SLOW_S = 1.0
"""An answer that took as long is reported to the router."""


class Poller:
    """Polls one worker and reports to the router; lives on the event loop of the source."""

    def __init__(
        self, key: str, place: Place, settings: MetricsSource, router: LoadTarget, slots: asyncio.Semaphore
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            key: Key of the worker.
            place: Where it is; its ranks have one page.
            settings: How to poll.
            router: The receiver of its load.
            slots: Limits the polls under way at once.
        """
        self._key = key
        self.place = place
        self.is_gone = False  # a worker that the router does not know is one that it does not name
        self._settings = settings
        self._sink = router.load_sink
        self._is_silent = False
        self._restarts = Restarts()
        self._slots = slots
        self._throughput = Throughput()
        self._published: tuple[object, ...] = _NO_FACTS
        self._engine: str | None = None  # as published
        self.stats = WorkerPolls()  # replaced whole, so that any thread may read it

    async def poll_forever(self) -> None:
        """Poll until cancelled."""
        from cachelb.sources.pages import PageClient

        address = self._address()
        if address is None:
            return
        interval_s = self._settings.interval_s
        failures = 0
        async with PageClient(address, self._settings.tls) as client:
            await asyncio.sleep(random.random() * interval_s)  # so that a fleet is not polled in one burst
            while True:
                async with self._slots:
                    begun_s = asyncio.get_running_loop().time()
                    failures = 0 if await self._poll(client) else failures + 1
                    took_s = asyncio.get_running_loop().time() - begun_s
                await asyncio.sleep(pause_s(interval_s, took_s, failures))

    def _address(self) -> Address | None:
        """Work out where the page is; None if the worker is not to be polled or has no usable URL."""
        try:
            url = (self._settings.url or default_metrics_url)(self.place[0])
            return None if url is None else metrics_address(url, self._settings.headers or {})
        except Exception as error:  # noqa: BLE001 - the function is the user's; other workers are polled all the same
            reason = str(error) if isinstance(error, ValueError) else type(error).__name__
            self._fail("no metrics URL", reason)
            return None

    async def _poll(self, client: PageClient) -> bool:
        """Fetch one page and report it; return whether it could be read."""
        loop = asyncio.get_running_loop()
        sent_s, timeout_s = loop.time(), self._settings.timeout_s
        self.stats = replace(self.stats, polls=self.stats.polls + 1)
        late = loop.call_later(timeout_s, self._fail, "TimeoutError")
        body, error, is_answered = b"", "", True
        try:
            async with asyncio.timeout(max(timeout_s, PATIENCE_S)):
                body = await client.get()
        except PageError as failure:
            error, is_answered = str(failure), failure.is_answer
        except OSError as failure:
            error, is_answered = type(failure).__name__, False
        finally:
            late.cancel()
        took_s = loop.time() - sent_s
        if error or took_s >= timeout_s:
            self._report_health(took_s, is_answered=is_answered)
            if took_s < timeout_s:
                self._fail(error)
            return False
        page = read_metrics_page(body)
        self.stats = replace(self.stats, dropped=self.stats.dropped + page.dropped)
        self._report_health(took_s, is_answered=True, is_restarted=self._restarts.observe(page))
        if page.fault is not None:
            self.stats = replace(self.stats, unknown=self.stats.unknown + 1, last_error=page.fault, readable=False)
            if self.stats.unknown == 1:
                detail = "it has no metric of vLLM, SGLang or TensorRT-LLM"
                _log.warning("the metrics page of %s is not read: %s, %s", worker_name(self._key), page.fault, detail)
            return False
        if self.stats.readable is False:
            _log.info("the metrics page of %s is readable again", worker_name(self._key))
        self.stats = replace(self.stats, engine=page.engine, readable=True)
        self._report(page, sent_s, loop.time())
        return True

    def _report_health(self, took_s: float, *, is_answered: bool, is_restarted: bool = False) -> None:
        """Report to the router whether the worker answers, unless that is no change."""
        if is_answered and not (self._is_silent or is_restarted or took_s >= _SLOW_S):
            return
        self._is_silent = not is_answered
        try:
            self._sink.update_health(self._key, answered=is_answered, took_s=took_s, restarted=is_restarted)
        except KeyError:
            pass  # removed a moment ago
        except Exception as error:  # noqa: BLE001 - a router in trouble must not end polling, and it is logged
            self._refuse(error)

    def _report(self, page: MetricsPage, sent_s: float, now_s: float) -> None:
        """Report the load to the router."""
        prefill_tps, gen_tps = self._throughput.observe(page, now_s=sent_s)
        load = page.load
        try:
            self._sink.update_load(
                self._key,
                running=load.running,
                waiting=load.waiting,
                queued_tokens=load.queued_tokens,
                kv_usage=load.kv_usage,
                prefill_tps=prefill_tps,
                gen_tps=gen_tps,
                age_s=now_s - sent_s,  # the engine took the values at some moment after the request was sent
                sleep=_sleep(page),
            )
            # By itself: a router that refuses the rest knows it all the same.
            if page.engine not in (None, self._engine):
                self._engine = page.engine
                self._sink.learn_worker(self._key, engine=page.engine)
            kv_blocks = load.kv_blocks
            if kv_blocks is not None and self.place[1] > 1:  # the router counts those of each rank
                kv_blocks //= max(len(page.ranks), 1)
            facts = (kv_blocks, load.block_size, load.retention_interval)
            if facts not in (_NO_FACTS, self._published):
                self._published = facts
                self._sink.learn_worker(
                    self._key,
                    kv_blocks=kv_blocks,
                    block_size=load.block_size,
                    retention_interval=load.retention_interval,
                )
        except KeyError:
            # Removed a moment ago; the source ends this poller at its next look.
            self._published, self._engine = _NO_FACTS, None
        except Exception as error:  # noqa: BLE001 - a router in trouble must not end polling, and it is logged
            self._refuse(error)

    def _refuse(self, error: Exception) -> None:
        """Count what the router did not take; log the first."""
        self.stats = replace(self.stats, refused=self.stats.refused + 1)
        if self.stats.refused == 1:
            trace = None if isinstance(error, ValueError) else error
            name = worker_name(self._key)
            _log.warning("the router refuses what the engine of %s states: %s", name, error, exc_info=trace)

    def _fail(self, kind: str, detail: str = "") -> None:
        """Count a failure; log the first of a row."""
        if self.stats.readable is not False:
            _log.warning("the metrics page of %s is not readable: %s", worker_name(self._key), detail or kind)
        self.stats = replace(self.stats, failures=self.stats.failures + 1, last_error=kind, readable=False)


def _sleep(page: MetricsPage) -> str | dict[int, str] | None:
    """Return whether the engine sleeps, by rank where ranks differ."""
    by_rank = {rank: load.sleep for rank, load in page.ranks.items() if load.sleep is not None}
    return by_rank if len(set(by_rank.values())) > 1 else page.load.sleep  # type: ignore[return-value]


def pause_s(interval_s: float, took_s: float, failures: int) -> float:
    """Return how long to wait before the next poll.

    Args:
        interval_s: Seconds between two polls.
        took_s: Seconds the last poll took.
        failures: Failures in a row.

    Returns:
        The rest of the interval, or longer for a page that is slow or cannot be fetched.
    """
    if failures == 0:
        return max(interval_s - took_s, took_s)
    return backoff_s(interval_s, failures)
