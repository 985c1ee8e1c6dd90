"""Workers of a host that does not announce them: each request lists those that may serve it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cachelb.router import Router


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
                name = self._router.key_of(key)
                del self._seen[key]
                if all(self._router.key_of(other) != name for other in self._seen):  # such as one without a last slash
                    self._router.remove_worker(name)
        return new
