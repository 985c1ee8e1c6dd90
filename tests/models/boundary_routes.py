"""Boundary learning, slowly: every route is the text of its prefix, and every question looks at all of them."""

from __future__ import annotations

from dataclasses import dataclass, field

BLOCK = 4


@dataclass
class Route:
    """A prefix, the workers that served it with the times, and its last use."""

    prefix: tuple[int, ...]
    used: int = 0
    served_at: dict[str, float] = field(default_factory=dict)


class SlowRoutes:
    """Routes of `BoundaryLearning`, without hashes, counters or orders."""

    def __init__(self, *, max_routes: int, ttl_s: float, multi_depth: bool, prefix_token_length: int) -> None:
        self.max_routes, self.ttl_s = max_routes, ttl_s
        self.multi_depth, self.prefix_token_length = multi_depth, prefix_token_length
        self.routes: dict[tuple[int, ...], Route] = {}
        self.uses = 0

    def keys(self, tokens: tuple[int, ...], ends: list[int]) -> list[tuple[int, ...]]:
        """Return the prefixes that a prompt is learned at, the shortest first."""
        lengths = sorted({end // BLOCK * BLOCK for end in ends} - {0})
        if not lengths:
            lengths = sorted({min(self.prefix_token_length, len(tokens)) // BLOCK * BLOCK} - {0})
        return [tokens[:length] for length in (lengths if self.multi_depth else lengths[:1])]

    def _holders(self, route: Route, now: float) -> set[str]:
        return {worker for worker, at in route.served_at.items() if now - at < self.ttl_s}

    def holders(self, tokens: tuple[int, ...], workers: set[str], now: float) -> tuple[set[str], int]:
        """Return those of `workers` that serve the deepest route of a prompt, and its length."""
        for length in range(len(tokens), 0, -1):
            route = self.routes.get(tokens[:length])
            if route is not None and (holders := self._holders(route, now) & workers):
                return holders, length
        return set(), 0

    def match(self, tokens: tuple[int, ...], length: int) -> None:
        """Use the route of that length and all before it, the shortest last."""
        for end in range(length, 0, -1):
            if tokens[:end] in self.routes:
                self._use(self.routes[tokens[:end]])

    def learn(self, keys: list[tuple[int, ...]], worker: str, at: float) -> None:
        """Note that a worker served prefixes, and forget what is too much or too old."""
        for key in reversed(keys):
            route = self.routes.setdefault(key, Route(key))
            route.served_at = {name: seen for name, seen in route.served_at.items() if at - seen < self.ttl_s}
            route.served_at[worker] = max(at, route.served_at.get(worker, at))
            self._use(route)
            while len(self.routes) > self.max_routes:
                self.routes.pop(self._oldest().prefix)
            while not self._holders(self._oldest(), at):
                self.routes.pop(self._oldest().prefix)

    def forget(self, worker: str) -> None:
        """A worker left."""
        for route in list(self.routes.values()):
            route.served_at.pop(worker, None)
            if not route.served_at:
                del self.routes[route.prefix]

    def _oldest(self) -> Route:
        return min(self.routes.values(), key=lambda route: route.used)

    def _use(self, route: Route) -> None:
        self.uses += 1
        route.used = self.uses
