"""Waiting for a worker that can be picked, whatever its load: in order of priority, then of arrival."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from cachelb._core import AdmissionGate
from cachelb.common.arguments import seconds
from cachelb.errors import NoWorkerAvailable
from cachelb.router.holding import Hold

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cachelb._core import Decision
    from cachelb.router.router import Router

_ANY_LOAD: dict[str, Any] = {
    "max_pending_requests": None,
    "max_pending_tokens": None,
    "order": "fcfs",
    "ageing_tokens_per_s": 0,
    "is_fair": False,
    "tenant_weights": {},
    "max_queued": 1 << 32,
    "notice_lag_s": 0.0,
    "routers": 1,
}


class Waiting:
    """The gate of requests that wait for any worker, as long as one does: a gate keeps its router alive."""

    def __init__(self) -> None:
        """Begin without a request."""
        self._gate: AdmissionGate[Any] | None = None
        self._holds = 0
        # A task of a closed loop ends in a finalizer, at any point of any thread.
        self._lock = threading.RLock()

    async def select(self, router: Router[Any], timeout_s: float, request: Mapping[str, Any]) -> Decision[Any]:
        """Wait until a worker can be picked, and select it."""
        timeout_s = seconds("timeout_s", timeout_s, least=0.0)
        if timeout_s == 0 or self._gate is None:
            try:
                return router.select_worker(**request)
            except NoWorkerAvailable:
                if timeout_s == 0:
                    raise
        with self._lock:
            gate = self._gate = self._gate or AdmissionGate(router, _ANY_LOAD)
            self._holds += 1
        try:
            decision: Decision[Any] = await Hold(gate, request, timeout_s, for_workers=True).wait()
            return decision
        finally:
            with self._lock:
                self._holds -= 1
                if self._holds == 0:
                    self._gate = None

    def __len__(self) -> int:
        return self._gate.waiting()[0] if self._gate is not None else 0
