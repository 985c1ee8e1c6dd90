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


class OfferedWorkers:
    """Registers workers when they are first offered, and removes those not offered for `forget_after_s`.

    A worker missing from one offer may be in a cooldown, or serve another model: it stays, with its cached prefixes.

    Example:
        >>> import cachelb
        >>> router = cachelb.Router()
        >>> offered = OfferedWorkers(router, forget_after_s=60)
        >>> offered.see(["a", "b"], now=0.0)
        ['a', 'b']
        >>> offered.see(["b"], now=59.0), offered.see(["b"], now=75.0)
        ([], [])
        >>> router.keys()
        ['b']
    """

    def __init__(self, router: Router[str], *, forget_after_s: float) -> None:
        if not forget_after_s > 0:
            raise ValueError(f"forget_after_s is {forget_after_s}, it must be above 0")
        self._router = router
        self._forget_after_s = forget_after_s
        self._seen: dict[str, float] = {}
        self._next_look = float("-inf")

    def see(self, keys: Iterable[str], *, now: float) -> list[str]:
        """Register the workers of an offer and return the new ones."""
        new: list[str] = []
        for key in keys:
            if key not in self._seen:
                self._router.add_worker(key)
                new.append(key)
            self._seen[key] = now
        if now >= self._next_look:
            self._next_look = now + self._forget_after_s / 4
            for key in [key for key, seen in self._seen.items() if now - seen > self._forget_after_s]:
                name = self._router.event_sink.key_of(key)
                del self._seen[key]
                if all(
                    self._router.event_sink.key_of(other) != name for other in self._seen
                ):  # such as one without a last slash
                    self._router.remove_worker(key)
        return new


class Guest:
    """A router inside of a host that picks by itself where this one cannot."""

    def __init__(self, *, forget_after_s: float, clock: Callable[[], float], options: dict[str, Any]) -> None:
        self.router: Router[str] = Router(clock=clock, **grouped(options))
        self.fallbacks: Counter[str] = Counter()
        self._clock = clock
        self._offered = OfferedWorkers(self.router, forget_after_s=forget_after_s)

    def _left(self, error: Exception, log: logging.Logger) -> str:
        """Count a request that is left to the host, and log the first error; return the reason."""
        reason = "no-worker" if isinstance(error, NoWorkerAvailable) else "error"
        if reason == "error" and not self.fallbacks[reason]:
            log.warning("the host picks, because picking failed with %s; logged once", type(error).__name__)
        self.fallbacks[reason] += 1
        return reason
