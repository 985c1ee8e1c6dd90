"""Requests for a few routers, one after the other, and what is open of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from tests.herd.processes import RouterProcess

BLOCKS = 40


class Traffic:
    """Routes prompts of conversations that grow, and knows the truth.

    Args:
        workers: All of them.
    """

    def __init__(self, workers: Sequence[str]) -> None:
        self._workers = tuple(workers)
        self._dice = np.random.default_rng(5)
        self._open: dict[RouterProcess, dict[int, str]] = {}
        self._next = 0
        self.prompts: list[bytes] = []

    def route(self, routers: Sequence[RouterProcess], count: int) -> None:
        """Send requests to routers in turn; they stay open."""
        for number in range(self._next, self._next + count):
            prompt = self._dice.integers(0, 1 << 17, 16 * BLOCKS, dtype=np.uint32).tobytes()
            self.prompts.append(prompt)
            router = routers[number % len(routers)]
            _, worker, _ = router.ask("route", number, prompt)
            self._open.setdefault(router, {})[number] = worker
            if number % 2:
                router.tell("first", number)
        self._next += count

    def end(self, routers: Sequence[RouterProcess], count: int) -> None:
        """End the oldest requests of each router."""
        for router in routers:
            for number in list(self._open.get(router, {}))[:count]:
                router.tell("done", number)
                del self._open[router][number]

    def forget(self, router: RouterProcess) -> None:
        """The router is dead, and its requests with it."""
        self._open.pop(router, None)

    def loads(self) -> dict[str, int]:
        """Return the true loads."""
        counts = Counter(worker for each in self._open.values() for worker in each.values())
        return {name: counts[name] for name in self._workers}
