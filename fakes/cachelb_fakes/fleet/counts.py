"""Counters of a worker, and waiting for them in tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Counts:
    """Requests for completions a worker has seen since it was added, across restarts.

    ``started == finished + rejected + failed + aborted + open``, always.

    Attributes:
        started: Requests that arrived.
        finished: Answered in full.
        rejected: Answered with an error because of their content.
        failed: Ended by a fault or by stopping the worker.
        aborted: Given up by the client.
        open: Being handled now.
        running: The part of them in the engine.
        waiting: The part of them queued for the engine.
        peak_running: The most that ran at once.
        prompt_tokens: Prompt tokens that reached the engine.
        cached_tokens: The part of them found in the cache.
        output_tokens: Tokens generated.
        tokenized: Prompts this worker had to tokenize itself.
        remote_prefills: Prompts whose KV came from another worker.
        pulled_tokens: Prompt tokens copied from other workers' host memory.
        missed_pulls: Sources named in requests that sent nothing.
        faults: Faults that struck, by kind or by status.

    Example:
        >>> from cachelb_fakes import FakeFleet
        >>> with FakeFleet(1) as fleet:
        ...     counts = fleet.workers[0].counts
        >>> counts.started, counts.open
        (0, 0)
    """

    started: int = 0
    finished: int = 0
    rejected: int = 0
    failed: int = 0
    aborted: int = 0
    open: int = 0
    running: int = 0
    waiting: int = 0
    peak_running: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    tokenized: int = 0
    remote_prefills: int = 0
    pulled_tokens: int = 0
    missed_pulls: int = 0
    faults: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """A request as it arrived.

    Attributes:
        path: Its path.
        headers: Its headers, whatever their case.
        body: Its parsed body; ``repr`` shows neither this nor `data`.
        data: Its body as it came.

    Example:
        >>> import json, urllib.request
        >>> from cachelb_fakes import FakeFleet
        >>> with FakeFleet(1) as fleet:
        ...     body = json.dumps({"prompt": "hello", "max_tokens": 1}).encode()
        ...     url, json_type = f"{fleet.urls[0]}/v1/completions", {"Content-Type": "application/json"}
        ...     urllib.request.urlopen(urllib.request.Request(url, body, json_type)).close()
        ...     seen = fleet.workers[0].requests[-1]
        >>> seen.path, seen.body["max_tokens"]
        ('/v1/completions', 1)
    """

    path: str
    headers: Mapping[str, str] = field(repr=False)
    body: dict[str, Any] = field(repr=False)
    data: bytes = field(repr=False)


class Watchers:
    """Tests that wait for a condition. Everything happens in the fleet's thread."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[[], object], Future[None]]] = []

    def add(self, condition: Callable[[], object]) -> Future[None]:
        """Return a future that is done once a condition holds; the condition is called now and after every change."""
        done: Future[None] = Future()
        self._waiting.append((condition, done))
        self.notify()
        return done

    def notify(self) -> None:
        """Check the conditions after a change."""
        if self._waiting:
            self._waiting = [entry for entry in self._waiting if not self._settle(*entry)]

    @staticmethod
    def _settle(condition: Callable[[], object], done: Future[None]) -> bool:
        if done.cancelled():
            return True
        try:
            if not condition():
                return False
        except Exception as error:  # noqa: BLE001 - it belongs to the waiting test
            done.set_exception(error)
        else:
            done.set_result(None)
        return True
