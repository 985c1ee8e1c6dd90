"""Workers of a host that does not announce them: each request lists those that may serve it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from cachelb.errors import NoWorkerAvailable
from cachelb.router import Router
from cachelb.router.flat import grouped

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterable


class Guest:
    """A router inside of a host that picks by itself where this one cannot.

    Workers are registered when they are first offered, and removed when they were not offered for `forget_after_s`. One
    that is missing from an offer may be in a cooldown, or serve another model: it stays, with its cached prefixes.

    Example:
        >>> times = iter([0.0, 59.0, 75.0])
        >>> guest = Guest(forget_after_s=60, clock=lambda: 0.0, options={})
        >>> [guest._see(keys, next(times)) for keys in (["a", "b"], ["b"], ["b"])]
        [['a', 'b'], [], []]
        >>> guest.router.keys()
        ['b']
    """

    def __init__(self, *, forget_after_s: float, clock: Callable[[], float], options: dict[str, Any]) -> None:
        if not forget_after_s > 0:
            raise ValueError(f"forget_after_s is {forget_after_s}, it must be above 0")
        self.router: Router[str] = Router(clock=clock, **grouped(options))
        self.fallbacks: Counter[str] = Counter()
        self._clock = clock
        self._forget_after_s = forget_after_s
        self._seen: dict[str, float] = {}
        self._next_look = float("-inf")

    def _see(self, keys: Iterable[str], now: float) -> list[str]:
        """Register the workers of an offer and return the new ones."""
        new: list[str] = []
        for key in keys:
            if key not in self._seen:
                self.router.add_worker(key)
                new.append(key)
            self._seen[key] = now
        if now >= self._next_look:
            self._next_look = now + self._forget_after_s / 4
            name_of = self.router.event_sink.key_of
            for key in [key for key, seen in self._seen.items() if now - seen > self._forget_after_s]:
                del self._seen[key]
                if name_of(key) not in map(name_of, self._seen):  # as of one without a last slash
                    self.router.remove_worker(key)
        return new

    def _left(self, error: Exception, log: logging.Logger) -> str:
        """Count a request that is left to the host, and log the first error; return the reason."""
        reason = "no-worker" if isinstance(error, NoWorkerAvailable) else "error"
        if reason == "error" and not self.fallbacks[reason]:
            log.warning("the host picks, because picking failed with %s; logged once", type(error).__name__)
        self.fallbacks[reason] += 1
        return reason
