"""The gateway of llm-d's published benchmark, as far as it is published: weighted scores over scraped metrics.

    score = queue + (1 - KV use) + 2 * prefix

`queue` is 1 at the shortest queue and 0 at the longest. `prefix` is where the three configurations differ: `precise`
has the longest prefix by KV events, from 0 at the least to 1 at the most; `default` the share of the prompt's first
4,096 tokens that it has sent there itself, among the last 500,000 tokens; `load` has none. Equal scores are drawn.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Literal

from tests.models.quiet_gateway import QuietGateway, follow, leading

from cachelb_lab.sim import Workload

Configuration = Literal["precise", "default", "load"]

MATCHED_TOKENS = 4_096
REMEMBERED_TOKENS = 500_000


class ScoringGateway(QuietGateway):
    """A `cachelb_lab.sim.gateway.Gateway`."""

    def __init__(self, workload: Workload, workers: int, configuration: Configuration, *, seed: int) -> None:
        self._workload = workload
        self._configuration = configuration
        self._random = random.Random(seed)
        self._waiting = [0] * workers
        self._kv_use = [0.0] * workers
        self._held: list[set[int]] = [set() for _ in range(workers)]
        self._sent: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(workers)]
        self._ticket = 0

    def select(self, request: int, tried: list[int], now: float) -> tuple[int, int, int, int]:
        blocks = self._workload.prompt(request).tolist()
        if self._configuration == "default":
            blocks = blocks[: MATCHED_TOKENS // self._workload.block_size]
        low, high = min(self._waiting), max(self._waiting)
        scores = [
            (1.0 if low == high else (high - waiting) / (high - low)) + 1.0 - use
            for waiting, use in zip(self._waiting, self._kv_use, strict=True)
        ]
        known: Sequence[set[int] | dict[int, None]] = self._sent if self._configuration == "default" else self._held
        matched = [leading(blocks, each) for each in known]
        least, most = (min(matched), max(matched)) if self._configuration == "precise" else (0, len(blocks))
        if self._configuration != "load":
            prefix = [1.0 if least == most else (each - least) / (most - least) for each in matched]
            scores = [score + 2.0 * share for score, share in zip(scores, prefix, strict=True)]
        best = max(scores)
        worker = self._random.choice([at for at, score in enumerate(scores) if score == best])
        if self._configuration == "default":
            self._remember(worker, blocks)
        self._ticket += 1
        return worker, self._ticket, matched[worker] * self._workload.block_size, 0

    def _remember(self, worker: int, blocks: list[int]) -> None:
        sent = self._sent[worker]
        for block in blocks:
            sent[block] = None
            sent.move_to_end(block)
        while len(sent) > REMEMBERED_TOKENS // self._workload.block_size:
            sent.popitem(last=False)

    def report(self, worker: int, load: tuple[int, int, int | None, float], at: float, now: float) -> None:
        _, self._waiting[worker], _, self._kv_use[worker] = load

    def changed(self, worker: int, changes: list[tuple[Any, ...]], now: float) -> None:
        follow(self._held[worker], changes)
