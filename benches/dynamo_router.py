"""Dynamo's router over KV events, with its own load book (ai-dynamo-runtime 1.6.1, defaults), as in its simulator.

    cost = (active prefill + prompt) / block size - cached blocks + blocks of all requests in flight with this one

Blocks of requests in flight count once, however many requests of a worker share them; placements do not count as
cached before an event reports them. Equal costs are drawn.
"""

# ruff: noqa: ARG002 - the protocol of gateways
from __future__ import annotations

import random
from collections import Counter
from typing import Any

from tests.models.quiet_gateway import QuietGateway, follow, leading

from cachelb_lab.sim import Workload


class DynamoRouter(QuietGateway):
    """A `cachelb_lab.sim.gateway.Gateway`."""

    def __init__(self, workload: Workload, workers: int, *, seed: int) -> None:
        self._workload = workload
        self._random = random.Random(seed)
        self._cached: list[set[int]] = [set() for _ in range(workers)]
        self._active: list[Counter[int]] = [Counter() for _ in range(workers)]
        self._prefill = [0] * workers
        self._open: dict[int, tuple[int, list[int], int]] = {}
        self._ticket = 0

    def select(self, request: int, tried: list[int], now: float) -> tuple[int, int, int, int]:
        blocks = self._workload.prompt(request).tolist()
        size, length = self._workload.block_size, int(self._workload.prompt_tokens[request])
        cached = [leading(blocks, each) for each in self._cached]
        costs = [
            max(0.0, (prefill + length) / size - hit) + len(active) + len(blocks) - leading(blocks, active)
            for prefill, hit, active in zip(self._prefill, cached, self._active, strict=True)
        ]
        least = min(costs)
        worker = self._random.choice([at for at, cost in enumerate(costs) if cost == least])
        self._active[worker].update(blocks)
        uncached = max(0, length - cached[worker] * size)
        self._prefill[worker] += uncached
        self._ticket += 1
        self._open[self._ticket] = worker, blocks, uncached
        return worker, self._ticket, cached[worker] * size, 0

    def first_token(self, ticket: int, now: float) -> None:
        worker, blocks, uncached = self._open[ticket]
        self._prefill[worker] -= uncached
        self._open[ticket] = worker, blocks, 0

    def finished(self, ticket: int, cached_tokens: int | None, now: float) -> None:
        worker, blocks, uncached = self._open.pop(ticket)
        self._prefill[worker] -= uncached
        active = self._active[worker]
        active.subtract(blocks)
        for block in blocks:
            if not active[block]:
                del active[block]

    def failed(self, ticket: int, now: float) -> None:
        self.finished(ticket, None, now)

    def cancelled(self, ticket: int, now: float) -> None:
        self.finished(ticket, None, now)

    def changed(self, worker: int, changes: list[tuple[Any, ...]], now: float) -> None:
        follow(self._cached[worker], changes)
