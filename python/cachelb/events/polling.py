"""The thread that polls the events of all workers."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from cachelb._core import PolledEvents, worker_name
from cachelb.events.calls import Caller, Calls
from cachelb.events.stats import PollSourceStats, PollStats
from cachelb.sources.http import PageError, address_of, metrics_address

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable

    from cachelb.events.poll_source import Events, Fetch
    from cachelb.events.sink import KvSink

_log = logging.getLogger("cachelb.events")

_PAGE: Final = "/kv_cache_events"
_FOLLOW_S: Final = 0.1
_JOIN_S: Final = 5.0
_GRACE_S: Final = 1.0
"""Seconds that `stop` waits for calls of a `fetch` that is not async, which it cannot interrupt."""
_LONGEST_BACKOFF_S: Final = 5.0
_MOST_DOUBLINGS: Final = 16
_MOST_BYTES: Final = 64 << 20
_MOST_EVENTS: Final = 1 << 20
_NAME_THREADS: Final = 8
"""Concurrent host name lookups, which block."""


@dataclass(frozen=True, slots=True)
class PollSettings:
    """How to poll; the attributes are the arguments of `PollSource`."""

    fetch: Fetch | None
    interval_s: float
    timeout_s: float
    block_size: int | None
    verify: bool
    url: Callable[[str], str | None] | None
    headers: Mapping[str, str]
    tls: ssl.SSLContext | None


class WorkerPoller:
    """Polls one worker; lives on the event loop of the source."""

    def __init__(self, key: str, place: tuple[str, int], settings: PollSettings, sink: KvSink) -> None:
        address, ranks = self.place = place
        self.stats = PollStats()  # replaced whole, so that any thread may read it
        self.is_gone = False  # whether the router did not know the worker
        self._key = key
        self._address = address
        self._settings = settings
        self._sink = sink
        self._ranks: list[int | None] = [None] if ranks == 1 else list(range(ranks))
        self._polled = PolledEvents(ranks=ranks, block_size=settings.block_size, verify=settings.verify)
        self._failures = 0
        self._connected = False

    async def poll_forever(self, calls: Calls) -> None:
        """Poll until cancelled, or until the worker is gone."""
        fetch, address = self._settings.fetch, self._address
        if fetch is not None:
            with Caller(lambda: fetch(address), calls) as caller:
                is_async = inspect.iscoroutinefunction(fetch)
                await self._poll_with(lambda: _call(fetch(address) if is_async else caller.call()))
            return
        from cachelb.sources.pages import PageClient

        try:
            url = self._settings.url(self._address) if self._settings.url is not None else self._address
            page = None if self._settings.url is not None else _PAGE
            if url is None:
                return
            url = url if "://" in url else f"http://{url}"
            place = metrics_address(url, {"Accept": "application/json", **self._settings.headers}, page=page, body=b"")
        except Exception as error:  # noqa: BLE001 - the function is the user's; other workers are polled all the same
            self._fail("no URL", str(error) if isinstance(error, ValueError) else type(error).__name__)
            return
        async with PageClient(place, self._settings.tls, most_bytes=_MOST_BYTES) as client:
            await self._poll_with(client.get)

    async def _poll_with(self, fetch: Callable[[], Awaitable[Events]]) -> None:
        while await self._poll(fetch):
            doublings = min(self._failures, _MOST_DOUBLINGS)
            longest = max(self._settings.interval_s, _LONGEST_BACKOFF_S)
            await asyncio.sleep(min(self._settings.interval_s * 2.0**doublings, longest))

    async def _poll(self, fetch: Callable[[], Awaitable[Events]]) -> bool:
        """Fetch the next events and apply them; return whether the worker is still registered."""
        self.stats = replace(self.stats, polls=self.stats.polls + 1)
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                answer = await fetch()
        except PageError as error:
            return self._fail(str(error))
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return self._fail(type(error).__name__)  # of the user's function
        except Exception as error:  # noqa: BLE001 - of the user's function; logged, and the worker is polled again
            return self._fail(type(error).__name__)
        try:
            messages = self._polled.take(_as_json(answer), now_s=time.time())
        except Exception as error:  # noqa: BLE001 - the answer is the user's; a number is missing now, which shows later
            self.stats = replace(self.stats, malformed=self.stats.malformed + 1)
            return self._fail("no events", f"{type(error).__name__}: {error}")
        if self._failures:
            _log.info("the events of %s can be fetched again", worker_name(self._key))
        self._failures = 0
        return self._apply(messages)

    def _apply(self, messages: list[tuple[int | None, int, bytes]]) -> bool:
        """Pass messages on; return whether the worker is still registered."""
        streams = self._sink._kv
        try:
            if not self._connected:
                for rank in self._ranks:
                    streams.connected(self._key, rank, False)  # noqa: FBT003 - the seam
                self._connected = True
            for rank, seq, payload in messages:
                where = None if len(self._ranks) == 1 else rank or 0
                _, missing = streams.live(self._key, where, seq, payload)
                if missing is not None:  # the worker was registered again a moment ago; nothing can be replayed
                    streams.replay_ended(self._key, where, False)  # noqa: FBT003 - the seam
        except KeyError:
            return self._leave()
        except Exception:  # noqa: BLE001 - a router in trouble must not end polling
            self.stats = replace(self.stats, refused=self.stats.refused + 1)
            if self.stats.refused == 1:
                _log.exception("the router failed to apply events of %s", worker_name(self._key))
        self.stats = replace(self.stats, messages=self.stats.messages + len(messages), foreign=self._polled.foreign)
        return True

    def _fail(self, kind: str, detail: str = "") -> bool:
        """Count a failure, and log the first of a row; return whether the worker is still registered."""
        if not self._failures:
            _log.warning("the events of %s cannot be fetched: %s", worker_name(self._key), detail or kind)
        self._failures += 1
        self.stats = replace(self.stats, failures=self.stats.failures + 1, last_error=kind)
        if not self._connected:
            return True
        try:
            for rank in self._ranks:
                self._sink._kv.disconnected(self._key, rank)
        except KeyError:
            return self._leave()
        self._connected = False
        return True

    def _leave(self) -> bool:
        """End polling: the worker was removed a moment ago. One that comes back has a poller of its own."""
        self.is_gone = True
        return False


async def _call(answer: Any) -> Events:  # noqa: ANN401 - what the user's function returns
    """Return the answer of the user's function; one that is not async may return a coroutine."""
    while inspect.isawaitable(answer):
        answer = await answer
    found: Events = answer
    return found


def _as_json(answer: object) -> bytes:
    """Write events as JSON, if they are not."""
    if answer is None:
        return b"[]"
    if isinstance(answer, (bytes, bytearray, memoryview)):
        return bytes(answer)
    if isinstance(answer, str):
        return answer.encode()
    if isinstance(answer, Mapping):
        raise TypeError("fetch must return a list of events, got one dict; put it in a list")
    if not isinstance(answer, Iterable):
        raise TypeError(f"fetch must return a list of events, got {type(answer).__name__}")
    return json.dumps(list(islice(answer, _MOST_EVENTS + 1))).encode()


class PollRun:
    """One run of the source's thread, from start to stop."""

    def __init__(self, settings: PollSettings, sink: KvSink) -> None:
        self.pid = os.getpid()
        self._settings = settings
        self._sink = sink
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._work, name="cachelb-kv-polls", daemon=True)
        self._main: asyncio.Task[None] | None = None
        self._pollers: dict[str, WorkerPoller] = {}
        self._calls = Calls()
        self._past = (0, 0)
        self._is_lost = False

    def start(self) -> None:
        """Start the thread."""
        self._main = self._loop.create_task(self._follow())
        self._thread.start()

    def stop(self) -> None:
        """Cancel everything and wait for the thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the thread has ended by itself
            self._loop.call_soon_threadsafe(self._cancel)
        if threading.current_thread() is self._thread:  # in a finalizer, which may run in any thread
            return
        self._thread.join(_JOIN_S)
        if self._thread.is_alive():
            _log.warning("the polling thread is still inside a call of the router; it ends when that returns")
        self._calls.join(_GRACE_S)

    def stats(self) -> PollSourceStats:
        """Return the counters."""
        workers = {key: poller.stats for key, poller in list(self._pollers.items())}
        polls, failures = self._past
        return PollSourceStats(
            polls + sum(worker.polls for worker in workers.values()),
            failures + sum(worker.failures for worker in workers.values()),
            workers,
        )

    def _cancel(self) -> None:
        if self._main is not None:
            self._main.cancel()

    def _work(self) -> None:
        assert self._main is not None  # noqa: S101 - set before the thread starts
        names = ThreadPoolExecutor(_NAME_THREADS, thread_name_prefix="cachelb-kv-poll-names")
        self._loop.set_default_executor(names)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                self._loop.run_until_complete(self._main)
        finally:
            names.shutdown(wait=False, cancel_futures=True)  # a hanging name server must not hold up `stop`
            self._loop.close()

    async def _follow(self) -> None:
        """Keep one task per worker of the router."""
        tasks: dict[str, asyncio.Task[None]] = {}
        leaving: set[asyncio.Task[None]] = set()
        try:
            while True:
                places = self._places()
                pollers = self._pollers
                for key in [key for key in tasks if pollers[key].is_gone or places.get(key) != pollers[key].place]:
                    task = tasks.pop(key)
                    task.cancel()
                    leaving.add(task)
                    task.add_done_callback(leaving.discard)
                    gone = self._pollers.pop(key).stats
                    self._past = (self._past[0] + gone.polls, self._past[1] + gone.failures)
                for key in places.keys() - tasks.keys():
                    poller = self._pollers[key] = WorkerPoller(key, places[key], self._settings, self._sink)
                    tasks[key] = asyncio.create_task(poller.poll_forever(self._calls))
                    tasks[key].add_done_callback(_log_crash)
                await asyncio.sleep(_FOLLOW_S)
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), *leaving, return_exceptions=True)

    def _places(self) -> dict[str, tuple[str, int]]:
        """Return address and number of ranks of the router's workers, or the last known ones if that fails."""
        found = {}
        try:
            for key, ranks in self._sink._kv.ranks():
                with contextlib.suppress(KeyError):  # removed a moment ago
                    found[key] = (address_of(self._sink, key), ranks)
        except Exception:  # noqa: BLE001 - logged; a failing router must not end polling
            if not self._is_lost:
                _log.exception("the router does not name its workers; polling goes on with the ones known")
            self._is_lost = True
            return {key: poller.place for key, poller in self._pollers.items()}
        self._is_lost = False
        return found


def _log_crash(task: asyncio.Task[None]) -> None:
    """Log that a worker is no longer polled; only an error of this package ends a task by itself."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("polling the events of a worker has ended", exc_info=error)
