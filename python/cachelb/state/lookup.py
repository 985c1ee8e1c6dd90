"""Lookup of peers in the background: a name service may be slow just when it matters."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from cachelb.state.options import peer_addresses

_log = logging.getLogger("cachelb.state")


class Lookup:
    """Calls a function for the peers' addresses again and again, each time in a thread of its own.

    `every_s` is the pause from one answer to the next call.
    """

    def __init__(self, ask: Callable[[], Sequence[str]], every_s: float) -> None:
        self._ask = ask
        self._every_s = every_s
        self._due_s = 0.0
        self._thread: threading.Thread | None = None
        self._answer: set[str] | None = None
        self._failing = False

    def newest(self, now: float) -> set[str] | None:
        """Start a call if it is time to, and return each answer once; None while there is no new one."""
        if self._thread is None:
            if now >= self._due_s:
                self._thread = threading.Thread(target=self._look, name="cachelb-state-peers", daemon=True)
                self._thread.start()
            return None
        if self._thread.is_alive():
            return None
        self._thread = None
        self._due_s = now + self._every_s
        answer, self._answer = self._answer, None
        return answer

    def _look(self) -> None:
        try:
            self._answer = peer_addresses(self._ask())
        except Exception as error:  # noqa: BLE001 - it is the caller's function
            if not self._failing:
                _log.warning("the list of peers could not be fetched: %r; the known peers stay", error)
            self._failing = True
        else:
            self._failing = False
