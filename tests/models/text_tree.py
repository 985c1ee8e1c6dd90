"""The slow and obvious form of what `PrefixTree` needs of a tree of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Found(NamedTuple):
    matched: int
    workers: list[str]


class ObviousTextTree:
    """For every worker, every beginning of every text, and when it was used last."""

    def __init__(self) -> None:
        self._used: dict[str, dict[str, float]] = {}

    def insert(self, key: str, worker: str, *, at: float) -> int:
        used = self._used.setdefault(worker, {})
        before = len(used)
        used.update({key[:end]: at for end in range(1, len(key) + 1)})
        return len(used) - before

    def match_prefix(self, key: str, *, among: Sequence[str]) -> Found:
        for end in range(len(key), 0, -1):
            if workers := [worker for worker in among if key[:end] in self._used.get(worker, ())]:
                return Found(end, workers)
        return Found(0, [])

    def evict_oldest(self, worker: str, min_units: int) -> int:
        used = self._used.get(worker, {})
        before = len(used)
        while used and before - len(used) < min_units:
            oldest = min(used.values())
            for beginning in [beginning for beginning, at in used.items() if at == oldest]:
                del used[beginning]
        return before - len(used)

    def remove_worker(self, worker: str) -> int:
        return len(self._used.pop(worker, {}))

    def size(self, worker: str) -> int:
        return len(self._used.get(worker, {}))
