"""The slowest requests of a run, and the probable cause of each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cachelb_lab.sim.result import SimResult, Status

_LARGE_SHARE = 0.05
_ENDS = {
    Status.UNFINISHED: "was not over at the end of the run",
    Status.FAILED: "its workers failed",
    Status.REJECTED: "no worker could be picked",
    Status.TOO_LONG: "fits into no cache",
    Status.ABORTED: "its client went away",
}


@dataclass(frozen=True, slots=True)
class WorstRequest:
    """One slow request. Seconds are simulated."""

    row: int  # in the workload
    status: str
    arrival_s: float
    ttft_s: float | None  # None without a first token
    e2e_s: float | None  # None without an end
    worker: str | None  # the last one, None without any
    reason: str | None  # of the decision; None without one
    prompt_tokens: int
    predicted_tokens: int  # expected in the cache by the decision
    cached_tokens: int  # found in the cache
    queued_before_tokens: int  # uncomputed prompt tokens of earlier requests at its worker
    least_queued_before_tokens: int  # the same at the worker that had fewest
    why: tuple[str, ...]  # most significant first


def worst_requests(result: SimResult, count: int = 5) -> list[WorstRequest]:
    """Return up to `count` requests that waited longest for their first token, those without one first."""
    ttft_s = np.where(np.isfinite(result.first_token_s), result.first_token_s - result.arrival_s, np.inf)
    ttft_s[np.equal(result.status, Status.TOO_LONG) | np.equal(result.status, Status.REJECTED)] = np.inf
    ttft_s[~np.isfinite(result.arrival_s)] = -1.0
    rows = np.argsort(-ttft_s, kind="stable")[:count]
    return [_describe(result, int(row)) for row in rows if ttft_s[row] >= 0]


def _describe(result: SimResult, row: int) -> WorstRequest:
    """Collect the facts of a request, and notable causes."""
    worker, arrival_s, status = int(result.worker[row]), float(result.arrival_s[row]), Status(int(result.status[row]))
    prompt, predicted, cached = (
        int(each[row]) for each in (result.workload.prompt_tokens, result.predicted_tokens, result.cached_tokens)
    )
    before = _queued_before(result, row)
    queued, least, large = int(before[worker]) if worker >= 0 else 0, int(before.min()), _LARGE_SHARE * prompt
    why = [_ENDS[status]] if status in _ENDS else []
    if result.retries[row]:
        why.append(f"tried again {result.retries[row]}x")
    if result.preemptions[row]:
        why.append(f"preempted {result.preemptions[row]}x")
    if queued > large:
        best = "no worker had fewer" if queued == least else f"{least:,} at the freest"
        why.append(f"{queued:,} tokens before it at its worker, {best}")
    if predicted - cached > large:
        why.append(f"{predicted - cached:,} tokens were taken to be cached and were not")
    return WorstRequest(
        row=row,
        status=status.name.lower().replace("_", "-"),
        arrival_s=arrival_s,
        ttft_s=_after(float(result.first_token_s[row]), arrival_s),
        e2e_s=_after(float(result.finish_s[row]), arrival_s),
        worker=result.workers[worker] if worker >= 0 else None,
        reason=result.reasons[int(result.reason[row])] if worker >= 0 else None,
        prompt_tokens=prompt,
        predicted_tokens=predicted,
        cached_tokens=cached,
        queued_before_tokens=queued,
        least_queued_before_tokens=least,
        why=(*why, f"computes {prompt - cached:,} of {prompt:,} prompt tokens"),
    )


def _queued_before(result: SimResult, row: int) -> npt.NDArray[np.float64]:
    """Return by worker the prompt tokens that a request would have waited for."""
    arrival_s = result.arrival_s[row]
    rows = np.arange(len(result.arrival_s))
    earlier = (result.arrival_s < arrival_s) | ((result.arrival_s == arrival_s) & (rows < row))
    there = earlier & (result.worker >= 0) & (result.first_token_s > arrival_s)
    tokens = result.workload.prompt_tokens[there].astype(np.int64) - result.cached_tokens[there]
    return np.bincount(result.worker[there], weights=tokens, minlength=len(result.workers)).astype(np.float64)


def _after(time_s: float, arrival_s: float) -> float | None:
    """Return a distance in time; None if the time never came."""
    return time_s - arrival_s if np.isfinite(time_s) else None
