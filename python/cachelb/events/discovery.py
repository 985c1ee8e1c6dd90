"""Asking engines where they publish their events, in a thread beside the one that receives them."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Mapping
from typing import Final, TypeAlias

from cachelb.common.loops import TaskThread
from cachelb.events.endpoints import Endpoint, worker_host
from cachelb.sources.http import PageError, metrics_address

Found: TypeAlias = Mapping[int, Endpoint] | Exception

_PAGE: Final = "/kv_event_sources"
_TIMEOUT_S: Final = 5.0
_NAME_THREADS: Final = 32
_JOIN_S: Final = 5.0
_ANY_HOST: Final = ("tcp://*:", "tcp://0.0.0.0:", "tcp://[::]:", "tcp://:::")


class Discovery(TaskThread):
    """Fetches `/kv_event_sources` of workers."""

    def __init__(self) -> None:
        super().__init__("cachelb-kv-event-sources", join_s=_JOIN_S, name_threads=_NAME_THREADS)
        self._answers: deque[tuple[str, Found]] = deque()

    def ask(self, key: str, address: str) -> None:
        """Ask a worker; its answer appears in `answers` some time later. `address` is the key with its credentials."""
        self.run(self._fetch(key, address))

    def answers(self) -> list[tuple[str, Found]]:
        """Return the answers that came: endpoints by rank, or why there are none."""
        return [self._answers.popleft() for _ in range(len(self._answers))]

    async def _fetch(self, key: str, address: str) -> None:
        from cachelb.sources.pages import PageClient

        found: Found
        try:
            worker_host(address)  # for its error
            url = address if "://" in address else f"http://{address}"
            page = metrics_address(url, {"Accept": "application/json"}, page=_PAGE)
            async with PageClient(page, None) as client, asyncio.timeout(_TIMEOUT_S):
                found = parse_page(await client.get(), key)
        except (PageError, OSError, ValueError, TypeError) as error:  # TimeoutError is an OSError
            found = error
        self._answers.append((key, found))


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
