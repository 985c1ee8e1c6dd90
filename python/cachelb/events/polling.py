"""Polls the events of workers."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from cachelb._core import PolledEvents, worker_name
from cachelb.events.calls import Caller, Calls
from cachelb.events.stats import PollStats
from cachelb.sources.http import PageError, metrics_address
from cachelb.sources.polled_run import Place, PolledRun, backoff_s

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cachelb.events.poll_source import Events, PollSource
    from cachelb.events.sink import KvSink

_log = logging.getLogger("cachelb.events")

_PAGE: Final = "/kv_cache_events"
_FOLLOW_S: Final = 0.1
_JOIN_S: Final = 5.0
_GRACE_S: Final = 1.0
"""Seconds that `stop` waits for calls of a `fetch` that is not async, which it cannot interrupt."""
_MOST_BYTES: Final = 64 << 20
_MOST_EVENTS: Final = 1 << 20
_NAME_THREADS: Final = 8
"""Concurrent host name lookups, which block."""


class WorkerPoller:
    """Polls one worker; lives on the event loop of the source."""

    def __init__(self, key: str, place: Place, settings: PollSource, sink: KvSink, calls: Calls) -> None:
        address, ranks = self.place = place
        self.stats = PollStats()  # replaced whole, so that any thread may read it
        self.is_gone = False  # whether the router did not know the worker
        self._key = key
        self._address = address
        self._settings = settings
        self._sink = sink
        self._calls = calls
        self._ranks: list[int | None] = [None] if ranks == 1 else list(range(ranks))
        self._polled = PolledEvents(ranks=ranks, block_size=settings.block_size, verify=settings.verify)
        self._failures = 0
        self._connected = False

    async def poll_forever(self) -> None:
        """Poll until cancelled, or until the worker is gone."""
        fetch, address = self._settings.fetch, self._address
        if fetch is not None:
            with closing(Caller(lambda: fetch(address), self._calls)) as caller:
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
            place = metrics_address(
                url, {"Accept": "application/json", **(self._settings.headers or {})}, page=page, body=b""
            )
        except Exception as error:  # noqa: BLE001 - the function is the user's; other workers are polled all the same
            self._fail("no URL", str(error) if isinstance(error, ValueError) else type(error).__name__)
            return
        async with PageClient(place, self._settings.tls, most_bytes=_MOST_BYTES) as client:
            await self._poll_with(client.get)

    async def _poll_with(self, fetch: Callable[[], Awaitable[Events]]) -> None:
        while not self.is_gone:
            await self._poll(fetch)
            await asyncio.sleep(backoff_s(self._settings.interval_s, self._failures))

    async def _poll(self, fetch: Callable[[], Awaitable[Events]]) -> None:
        """Fetch the next events and apply them."""
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

    def _apply(self, messages: list[tuple[int | None, int, bytes]]) -> None:
        """Pass messages on; polling ends with a worker that the router does not know any more.

        It was removed a moment ago. One that comes back has a poller of its own.
        """
        streams = self._sink.event_sink
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
            self.is_gone = True
            return
        except Exception:  # noqa: BLE001 - a router in trouble must not end polling
            self.stats = replace(self.stats, refused=self.stats.refused + 1)
            if self.stats.refused == 1:
                _log.exception("the router failed to apply events of %s", worker_name(self._key))
        self.stats = replace(self.stats, messages=self.stats.messages + len(messages), foreign=self._polled.foreign)

    def _fail(self, kind: str, detail: str = "") -> None:
        """Count a failure, and log the first of a row."""
        if not self._failures:
            _log.warning("the events of %s cannot be fetched: %s", worker_name(self._key), detail or kind)
        self._failures += 1
        self.stats = replace(self.stats, failures=self.stats.failures + 1, last_error=kind)
        if self._connected:
            try:
                for rank in self._ranks:
                    self._sink.event_sink.disconnected(self._key, rank)
            except KeyError:
                self.is_gone = True
            self._connected = False


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


def poll_run(settings: PollSource, sink: KvSink) -> PolledRun[PollStats]:
    """Prepare one run of the source's thread."""
    calls = Calls()
    return PolledRun(
        "cachelb-kv-polls",
        sink,
        sink.event_sink.ranks,
        lambda key, place: WorkerPoller(key, place, settings, sink, calls),
        follow_s=_FOLLOW_S,
        join_s=_JOIN_S,
        name_threads=_NAME_THREADS,
        log=_log,
        ended=lambda: calls.join(_GRACE_S),
    )
