"""One run of a thread that polls all workers of a router."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from cachelb.common.loops import LoopThread
from cachelb.sources.http import address_of

Place: TypeAlias = tuple[str, int]
"""Address of a worker, with its credentials, and its number of ranks."""


_LONGEST_BACKOFF_S: Final = 5.0
_MOST_DOUBLINGS: Final = 16


class Polls(Protocol):
    """Counters of one worker."""

    @property
    def polls(self) -> int:
        """Pages asked for."""
        ...

    @property
    def failures(self) -> int:
        """Pages that could not be fetched or read."""
        ...


_P = TypeVar("_P", bound=Polls)


class Polling(Protocol[_P]):
    """Polls one worker; lives on the event loop of the run."""

    place: Place
    stats: _P
    """Replaced whole, so that any thread may read it."""

    is_gone: bool
    """Whether the router did not know the worker: another one takes its place if the router does after all."""

    async def poll_forever(self) -> None:
        """Poll until cancelled, or until the worker is gone."""
        ...


class PolledRun(LoopThread, Generic[_P]):
    """A thread with an event loop and a task per worker, from start to stop.

    `workers` returns keys and numbers of ranks of the router's workers, `make` what polls one of them, and `ended` is
    called behind the thread.
    """

    def __init__(
        self,
        name: str,
        router: object,
        workers: Callable[[], Iterable[tuple[str, int]]],
        make: Callable[[str, Place], Polling[_P]],
        *,
        follow_s: float,
        join_s: float,
        name_threads: int,
        log: logging.Logger,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(name, join_s=join_s, name_threads=name_threads)
        self._router = router
        self._workers = workers
        self._make = make
        self._follow_s = follow_s
        self._log = log
        self._ended = ended
        self._pollers: dict[str, Polling[_P]] = {}
        self._past = (0, 0)
        self._is_lost = False

    def stop(self) -> None:
        """Cancel everything and wait for the thread."""
        is_over = self._end()
        if is_over is False:
            self._log.warning("the polling thread is blocked in a call of the router and ends once the call returns")
        if is_over is not None:
            self._ended()

    def totals(self) -> tuple[int, int, dict[str, _P]]:
        """Return polls and failures, with those of removed workers, and the counters of each worker polled now."""
        workers = {key: poller.stats for key, poller in list(self._pollers.items())}
        polls, failures = self._past
        polls += sum(worker.polls for worker in workers.values())
        return polls, failures + sum(worker.failures for worker in workers.values()), workers

    async def _main(self) -> None:
        """Keep one task per worker of the router."""
        pollers = self._pollers
        tasks: dict[str, asyncio.Task[None]] = {}
        leaving: set[asyncio.Task[None]] = set()
        try:
            while True:
                places = self._places()
                for key in [key for key in tasks if pollers[key].is_gone or places.get(key) != pollers[key].place]:
                    task = tasks.pop(key)
                    task.cancel()
                    leaving.add(task)
                    task.add_done_callback(leaving.discard)
                    gone = pollers.pop(key).stats
                    self._past = (self._past[0] + gone.polls, self._past[1] + gone.failures)
                for key in places.keys() - tasks.keys():
                    poller = pollers[key] = self._make(key, places[key])
                    tasks[key] = asyncio.create_task(poller.poll_forever())
                    tasks[key].add_done_callback(self._log_crash)
                await asyncio.sleep(self._follow_s)
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), *leaving, return_exceptions=True)

    def _places(self) -> dict[str, Place]:
        """Return the places of the router's workers, or the last known ones if that fails."""
        found = {}
        try:
            for key, ranks in self._workers():
                with contextlib.suppress(KeyError):  # removed a moment ago
                    found[key] = (address_of(self._router, key), ranks)
        except Exception:  # noqa: BLE001 - logged; a failing router must not end polling
            if not self._is_lost:
                self._log.exception("the router does not name its workers; polling goes on with the ones known")
            self._is_lost = True
            return {key: poller.place for key, poller in self._pollers.items()}
        self._is_lost = False
        return found

    def _log_crash(self, task: asyncio.Task[None]) -> None:
        """Log that a worker is no longer polled; only an error of this package ends a task by itself."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("polling of a worker has ended", exc_info=error)


def backoff_s(interval_s: float, failures: int) -> float:
    """Return the interval after so many failures in a row: 2, 4, 8 times as long, up to 5 seconds."""
    return max(interval_s, min(interval_s * 2.0 ** min(failures, _MOST_DOUBLINGS), _LONGEST_BACKOFF_S))
