"""Requests as workers served them: what follow-up turns found, and how evenly the load lay on the workers."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np
import numpy.typing as npt

from cachelb_lab.sim import SimResult, Workload
from cachelb_lab.sim.figures.metrics import Imbalance

Dispatch = Literal["in turn", "least loaded", "conversations stay"]

_LOOKS = 200


@dataclass(frozen=True)
class Evenness:
    """Coefficients of variation over the workers, in the steady part.

    Attributes:
        open_now: Variation of the requests in flight at one time, averaged over times.
        open_mean: Variation of the requests in flight, averaged over time.
        tokens: Variation of the prompt tokens of the requests that began.
    """

    open_now: float
    open_mean: float
    tokens: float


@dataclass(frozen=True)
class Served:
    """All requests of a workload, by row; seconds are the workload's.

    Attributes:
        workload: The requests.
        names: The workers.
        worker: The worker of each.
        begin_s: When it was routed.
        end_s: When it ended.
        held: Tokens of its prompt that its worker held.
    """

    workload: Workload
    names: Sequence[str]
    worker: npt.NDArray[np.int64]
    begin_s: npt.NDArray[np.float64]
    end_s: npt.NDArray[np.float64]
    held: npt.NDArray[np.int64]

    @classmethod
    def empty(cls, workload: Workload, names: Sequence[str]) -> Self:
        """Begin with none."""
        count = len(workload)
        whole, seconds = np.zeros(count, np.int64), np.zeros(count)
        return cls(workload, names, whole - 1, seconds, seconds.copy(), whole)

    @classmethod
    def simulated(cls, run: SimResult) -> Self:
        """Take those of a run."""
        held = run.cached_tokens.astype(np.int64)
        return cls(run.workload, run.workers, run.worker.astype(np.int64), run.arrival_s, run.finish_s, held)

    def note(self, row: int, worker: str, begin_s: float, held: int) -> None:
        """Note where a request began."""
        self.worker[row], self.begin_s[row], self.held[row] = self.names.index(worker), begin_s, held

    @property
    def per_worker(self) -> float:
        """Return the requests in flight on a worker in the steady part, in the mean."""
        return float(self._open_mean().mean())

    @property
    def counted(self) -> int:
        """Return how many requests begin in the steady part."""
        return int(self._steady().sum())

    def follow_up_hits(self) -> float:
        """Return the share of the prompt tokens of follow-up turns that their workers held."""
        return self._of_follow_ups(self.held)

    def findable(self, *, answers: bool) -> float:
        """Return the same of one cache without bounds that sees all requests in the order they began.

        Args:
            answers: Whether workers keep those, too.
        """
        seen: set[int] = set()
        found = np.zeros(len(self.workload), np.int64)
        for row in np.argsort(self.begin_s, kind="stable").tolist():
            hashes = self.workload.prompt(row).tolist()
            # Hashes are chained, so that a block which was seen comes after none that was not.
            low, high = 0, len(hashes)
            while low < high:
                middle = (low + high) // 2
                low, high = (middle + 1, high) if hashes[middle] in seen else (low, middle)
            most = (int(self.workload.prompt_tokens[row]) - 1) // self.workload.block_size
            found[row] = min(low, most) * self.workload.block_size
            seen.update(hashes[low:])
            if answers:
                seen.update(self.workload.answer(row).tolist())
        return self._of_follow_ups(found)

    def dispatched(self, how: Dispatch) -> Served:
        """Return the same requests with the same times on other workers, by one that sees all loads.

        Args:
            how: All requests in turn, each to the worker with the fewest open, or only the first of each conversation.
        """
        worker = np.full(len(self.workload), -1, np.int64)
        loads = np.zeros(len(self.names), np.int64)
        last = np.arange(len(self.names))
        ends: list[tuple[float, int]] = []
        for turn, row in enumerate(np.argsort(self.begin_s, kind="stable").tolist()):
            while ends and ends[0][0] <= self.begin_s[row]:
                loads[heapq.heappop(ends)[1]] -= 1
            parent = int(self.workload.parent[row])
            if how == "in turn":
                at = turn % len(loads)
            elif how == "conversations stay" and parent >= 0:
                at = int(worker[parent])
            else:
                # Ties go to the one that waited longest.
                at = int(np.lexsort((last, loads))[0])
            worker[row], last[at] = at, len(loads) + turn
            loads[at] += 1
            heapq.heappush(ends, (float(self.end_s[row]), at))
        return replace(self, worker=worker)

    def evenness(self) -> Evenness:
        """Return how even the load was."""
        begin, end = self._span()
        now = [
            Imbalance.of(self._sum((self.begin_s <= at) & (at < self.end_s))).cov
            for at in np.linspace(begin, end, _LOOKS, endpoint=False)
        ]
        tokens = self._sum(np.where(self._steady(), self.workload.prompt_tokens, 0))
        return Evenness(float(np.mean(now)), Imbalance.of(self._open_mean()).cov, Imbalance.of(tokens).cov)

    def _span(self) -> tuple[float, float]:
        """Return the steady part: the second half of the time in which conversations begin."""
        last_s = float(np.nanmax(self.workload.arrival_s))
        return last_s / 2, last_s

    def _steady(self) -> npt.NDArray[np.bool_]:
        begin, end = self._span()
        inside: npt.NDArray[np.bool_] = (self.begin_s >= begin) & (self.begin_s < end)
        return inside

    def _open_mean(self) -> npt.NDArray[np.float64]:
        begin, end = self._span()
        return self._sum(np.clip(self.end_s, begin, end) - np.clip(self.begin_s, begin, end)) / (end - begin)

    def _sum(self, values: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
        sums = np.bincount(self.worker, weights=values.astype(np.float64), minlength=len(self.names))
        return sums.astype(np.float64)

    def _of_follow_ups(self, tokens: npt.NDArray[np.int64]) -> float:
        later = self.workload.parent >= 0
        return float(tokens[later].sum() / self.workload.prompt_tokens[later].sum(dtype=np.int64))
