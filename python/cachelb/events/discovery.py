"""Asking engines where they publish their events, in a thread beside the one that receives them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeAlias

from cachelb.events.endpoints import Endpoint, worker_host
from cachelb.sources.http import PageError, metrics_address

Found: TypeAlias = Mapping[int, Endpoint] | Exception

_PAGE: Final = "/kv_event_sources"
_TIMEOUT_S: Final = 5.0
_NAME_THREADS: Final = 32
_JOIN_S: Final = 5.0
_ANY_HOST: Final = ("tcp://*:", "tcp://0.0.0.0:", "tcp://[::]:", "tcp://:::")


class Discovery:
    """Fetches `/kv_event_sources` of workers. Its thread runs from the first question on."""

    def __init__(self) -> None:
        self._answers: deque[tuple[str, Found]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def ask(self, key: str, address: str) -> None:
        """Ask a worker; its answer appears in `answers` some time later.

        Args:
            key: Its key.
            address: The key with its credentials.
        """
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=_run, args=(self._loop,), name="cachelb-kv-event-sources", daemon=True
            )
            self._thread.start()
        asyncio.run_coroutine_threadsafe(self._fetch(key, address), self._loop)

    def answers(self) -> list[tuple[str, Found]]:
        """Return the answers that came: endpoints by rank, or why there are none."""
        found = []
        with contextlib.suppress(IndexError):
            while True:
                found.append(self._answers.popleft())
        return found

    def stop(self) -> None:
        """End the thread. Idempotent."""
        loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join(_JOIN_S)

    async def _fetch(self, key: str, address: str) -> None:
        from cachelb.sources.pages import PageClient

        found: Found
        try:
            page = metrics_address(page_url(address), {"Accept": "application/json"})
            async with PageClient(page, None) as client, asyncio.timeout(_TIMEOUT_S):
                found = parse_page(await client.get(), key)
        except (PageError, OSError, ValueError, TypeError) as error:  # TimeoutError is an OSError
            found = error
        self._answers.append((key, found))


def page_url(key: str) -> str:
    """Return the URL of an engine's page of event sources: beside the API.

    Args:
        key: Key of the worker.

    Returns:
        The URL.

    Raises:
        ValueError: The key names no host.

    Example:
        >>> from cachelb.events.discovery import page_url
        >>> page_url("http://gpu0:8000/v1")
        'http://gpu0:8000/kv_event_sources'
    """
    worker_host(key)
    scheme, sign, rest = key.rpartition("://")
    return f"{scheme or 'http'}{sign or '://'}{rest.partition('/')[0].partition('?')[0]}{_PAGE}"


def parse_page(body: bytes, key: str) -> dict[int, Endpoint]:
    """Read the page of an engine's event sources.

    vLLM listens where its endpoint names any host or a file; elsewhere it connects to a subscriber.

    Args:
        body: The page: JSON with an object per rank.
        key: Key of the worker, whose host stands in for "any host".

    Returns:
        Endpoints by rank; none of a rank whose engine connects to the subscriber.

    Raises:
        ValueError: The page is no such JSON.

    Example:
        >>> from cachelb.events.discovery import parse_page
        >>> parse_page(b'{"0": {"endpoint": "tcp://*:5557", "replay_endpoint": null}}', "http://gpu0:8000")
        {0: Endpoint(address='tcp://gpu0:5557', replay=None, bind=False)}
    """
    page = json.loads(body)
    if not isinstance(page, dict) or not all(isinstance(source, dict) for source in page.values()):
        raise ValueError("not a list of event sources")
    found = {}
    for rank, source in page.items():
        named = source.get("endpoint")
        if isinstance(named, str) and ("*" in named or "::" in named or named.startswith("ipc://")):
            replay = source.get("replay_endpoint")
            found[int(rank)] = Endpoint(_at_host(named, key), None if replay is None else _at_host(replay, key))
    return found


def _at_host(address: str, key: str) -> str:
    """Put the worker's host in the place of a wildcard."""
    prefix = next((prefix for prefix in _ANY_HOST if str(address).startswith(prefix)), None)
    return address if prefix is None else f"tcp://{worker_host(key)}:{address.removeprefix(prefix)}"


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    names = ThreadPoolExecutor(_NAME_THREADS, thread_name_prefix="cachelb-kv-names")
    loop.set_default_executor(names)
    try:
        loop.run_forever()
        loop.run_until_complete(_cancel_all())
    finally:
        names.shutdown(wait=False, cancel_futures=True)  # a hanging name server must not hold up `stop`
        loop.close()
