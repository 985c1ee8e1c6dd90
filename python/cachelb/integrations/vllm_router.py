"""vllm-router: a callable that picks a worker, for builds of it that ask Python.

Such a router calls `select(workers, request_text, headers)` for each request and takes the returned position, or picks
by its own policy where that is None. It reports no end of a request, but counts the open ones of each worker: bookings
beyond its count are over, the oldest first.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cachelb.decision import Decision
from cachelb.integrations.offered import Guest
from cachelb.integrations.parsed import as_body

_log = logging.getLogger("cachelb.integrations.vllm_router")


class VllmRouterSelect(Guest):
    """A callable that picks one of vllm-router's workers, by cached prefix and load. Safe to call from threads.

    A worker is a mapping with its `url`, which is its key, its `load`, the requests it has open, and `model_id`.

    Args:
        forget_after_s: Seconds after which a worker that is no longer listed is forgotten.
        clock: Function that returns monotonic seconds.
        **router_options: Options of `cachelb.Router`, such as `policy`.

    Raises:
        TypeError: An option has the wrong type, or there is no such option.
        ValueError: An option is out of range.

    Attributes:
        router: The router: its statistics, its workers, and `attach` for sources and sinks.
        fallbacks: Times that vllm-router was left to pick, by reason: "no-worker", no worker can be picked; "error", an
            error, whose class is logged once.

    Example:
        >>> select = VllmRouterSelect(seed=1)
        >>> workers = [{"url": "http://gpu0:8000", "load": 0}, {"url": "http://gpu1:8000", "load": 0}]
        >>> first = select(workers, "Once upon a time " * 20, {})
        >>> select(workers, "Once upon a time " * 20, {}) == first
        True
    """

    def __init__(
        self,
        *,
        forget_after_s: float = 3600.0,
        clock: Callable[[], float] = time.monotonic,
        **router_options: Any,  # noqa: ANN401 - options of any type
    ) -> None:
        super().__init__(forget_after_s=forget_after_s, clock=clock, options=router_options)
        self._lock = threading.Lock()
        self._open: dict[str, deque[Decision[str]]] = {}  # by key of the worker, the oldest first

    def __call__(
        self, workers: Sequence[Mapping[str, Any]], request_text: str | None, headers: Mapping[str, str] | None = None
    ) -> int | None:
        """Pick one of the workers and book it. Never raises.

        Args:
            workers: The workers that may serve the request.
            request_text: The prompt as text, None if it has none.
            headers: Headers of the request, for the session.

        Returns:
            Position of the worker, None to let vllm-router pick.
        """
        try:
            with self._lock:
                return self._pick([str(worker["url"]) for worker in workers], workers, request_text, headers)
        except Exception as error:  # noqa: BLE001 - counted and logged
            self._left(error, _log)
            return None

    def _pick(
        self, urls: list[str], workers: Sequence[Mapping[str, Any]], text: str | None, headers: Mapping[str, str] | None
    ) -> int:
        if self._see(urls, self._clock()):
            known = self.router.keys()
            self._open = {key: bookings for key, bookings in self._open.items() if key in known}
        keys = [self.router.event_sink.key_of(url) for url in urls]
        for key, worker in zip(keys, workers, strict=True):
            bookings = self._open.setdefault(key, deque())
            while len(bookings) > max(0, int(worker.get("load") or 0)):
                bookings.popleft().on_complete()
        asked = as_body({}, prompt=text)
        asked["headers"] = headers
        asked["model"] = workers[0].get("model_id") if workers else None
        asked["among"] = keys
        decision = self.router.select_worker(**asked)
        self._open[decision.key].append(decision)
        return keys.index(decision.key)
