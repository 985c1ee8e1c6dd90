"""One run of a source of workers: a thread with an event loop, from start to stop."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from cachelb.common.arguments import listed
from cachelb.common.loops import LoopThread
from cachelb.types import DiscoveryStats
from cachelb_gateway.discovery.errors import DiscoveryError
from cachelb_gateway.discovery.guard import MOST_WORKERS, DropGuard

if TYPE_CHECKING:
    from cachelb.router import Router

_log = logging.getLogger("cachelb_gateway.discovery")

_KEEP_S: Final = 1.0
_JOIN_S: Final = 5.0
_NAME_THREADS: Final = 4
_FIRST_BACKOFF_S: Final = 0.5
_LONGEST_BACKOFF_S: Final = 30.0
_MOST_DOUBLINGS: Final = 10


def backoff_s(failures: int, longest_s: float = _LONGEST_BACKOFF_S) -> float:
    """Return how long to wait after failures in a row: longer each time, and never the same for two routers."""
    pause_s = _FIRST_BACKOFF_S * 2.0 ** min(max(failures - 1, 0), _MOST_DOUBLINGS)
    return min(pause_s, longest_s) * random.uniform(0.5, 1.0)


class DiscoveryRun(LoopThread):
    """Passes the answers of a source through the guard to the router.

    `follow` looks for workers until it is cancelled; it calls `found` and `failed` in the thread of the run.
    """

    def __init__(
        self,
        source: object,
        name: str,
        router: Router[Any],
        follow: Callable[[DiscoveryRun], Awaitable[None]],
        *,
        drop_wait_s: float,
        worker_options: Mapping[str, Any],
    ) -> None:
        super().__init__("cachelb-discovery", join_s=_JOIN_S, name_threads=_NAME_THREADS)
        self._source = source
        self._name = name
        self._router = router
        self._follow = follow
        self._guard = DropGuard(drop_wait_s)
        self._options = worker_options
        # In the child of a fork, those that the parent found.
        self._guard.held = router.discovered.found_by(source)
        self._found: frozenset[str] = frozenset()
        self._urls: dict[str, str] = {}
        self._answers = self._failures = 0
        self._answered_s: float | None = None
        self._failing = ""
        self._is_refused = False

    def start(self) -> None:
        """Start the thread."""
        self._router.discovered.join(self._source, self.stats)
        super().start()

    def stop(self) -> None:
        """End the thread, and wait for it; the workers stay registered."""
        if self._end() is False:
            _log.warning("%s: its thread is blocked in a call and ends once the call returns", self._name)
        self._router.discovered.leave(self._source)

    def found(self, workers: Iterable[str]) -> None:
        """Take an answer: all workers there are."""
        try:
            urls, names = self._router.discovered.named(self._router, listed("workers", workers, MOST_WORKERS))
        except (TypeError, ValueError) as error:
            raise DiscoveryError(str(error)) from error
        now_s = time.monotonic()
        waits = self._guard.waits
        self._found = frozenset(names)
        held = self._guard.answer(self._found, now_s)
        known = {name: name for name in held} | self._urls | dict(zip(names, urls, strict=True))
        # In the order of the answer, which is the order of registration.
        order = dict.fromkeys(names) | known
        self._urls = {name: known[name] for name in order if name in held}
        if self._guard.waits != waits:
            text = "%s finds %d workers after %d; waiting for an answer that confirms it"
            _log.warning(text, self._name, len(self._found), len(held))
        self._sync()
        if self._failing:
            _log.info("%s answers again", self._name)
        # Last, so that statistics show an answer after its effect.
        self._failing = ""
        self._answered_s = now_s
        self._answers += 1

    def failed(self, reason: str) -> None:
        """Count a failure, and log it if it is another one than before. The workers stay."""
        if reason != self._failing:
            _log.warning("%s does not answer: %s; the workers of the last answer stay", self._name, reason)
        self._failing = reason
        self._failures += 1

    def confirm_in_s(self) -> float | None:
        """Return the seconds until another answer is due, as it can confirm a drop; None if nothing waits for it."""
        return self._guard.confirm_in_s(time.monotonic())

    def stats(self) -> DiscoveryStats:
        """Return the statistics; from any thread."""
        held, found, answered_s = self._guard.held, self._found, self._answered_s
        return DiscoveryStats(
            source=self._name,
            found=len(found),
            waiting=len(held - found),
            answers=self._answers,
            failures=self._failures,
            waits=self._guard.waits,
            age_s=None if answered_s is None else time.monotonic() - answered_s,
            failing=self._failing,
        )

    def _sync(self) -> None:
        """Register the workers. One that was removed by hand is registered again."""
        try:
            self._router.discovered.sync(self._router, self._source, self._urls.values(), self._options)
        except Exception:  # noqa: BLE001 - logged; a router in trouble must not end discovery
            if not self._is_refused:
                _log.exception("%s: the router refuses workers", self._name)
            self._is_refused = True
        else:
            self._is_refused = False

    async def _main(self) -> None:
        """Follow the source for ever; only an error of its code ends it, and it begins again."""
        keeping = asyncio.create_task(self._keep())
        failures = 0
        try:
            while True:
                answers = self._answers
                try:
                    await self._follow(self)
                    self.failed("follow() has returned")
                except Exception as error:  # noqa: BLE001 - logged; of a subclass of the user
                    if not failures:
                        _log.exception("%s has failed; it is started again", self._name)
                    self.failed(type(error).__name__)
                failures = 1 if self._answers > answers else failures + 1
                await asyncio.sleep(backoff_s(failures))
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(_KEEP_S)
            if self._answers:
                self._sync()
