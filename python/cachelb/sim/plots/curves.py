"""Data of the plots, of bounded size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cachelb.sim.metrics import hit_rate
from cachelb.sim.result import SimResult

CURVE_POINTS = 400
"""Points of a distribution or of a course of time; more than a screen shows is only weight."""
INSPECTED = 3_000
"""Requests of one run that can be looked at one by one."""


@dataclass(frozen=True, eq=False)
class Curve:
    """One line."""

    name: str  # in the legend
    x: npt.NDArray[np.float64]  # ascending
    y: npt.NDArray[np.float64]


def by_policy(results: Iterable[SimResult]) -> dict[str, list[SimResult]]:
    """Group runs of several seeds by policy, in order of first mention."""
    grouped: dict[str, list[SimResult]] = {}
    for result in results:
        grouped.setdefault(result.policy, []).append(result)
    return grouped


def distribution(name: str, values: npt.NDArray[np.float64]) -> Curve:
    """Return the share of values up to each value, in at most `CURVE_POINTS` points that end with the largest."""
    ordered = np.sort(values)
    if not len(ordered):
        return Curve(name, ordered, ordered)
    rows = np.unique(np.linspace(0, len(ordered) - 1, CURVE_POINTS).round().astype(np.int64))
    return Curve(name, ordered[rows], (rows + 1.0) / len(ordered))


def ttft_distributions(results: Iterable[SimResult]) -> list[Curve]:
    """Return one distribution of the time to the first token per policy, over all its runs."""
    return [
        distribution(policy, np.concatenate([run.ttft_s for run in runs]))
        for policy, runs in by_policy(results).items()
    ]


@dataclass(frozen=True, slots=True)
class HitRates:
    """The cache hit rates of one policy over its seeds."""

    policy: str
    mean: float  # of all seeds
    below: float  # from the lowest to the mean
    above: float  # from the mean to the highest


def hit_rates(results: Iterable[SimResult]) -> list[HitRates]:
    """Return the shares of prompt tokens that were cached, by policy."""
    rates = {policy: [hit_rate(run) for run in runs] for policy, runs in by_policy(results).items()}
    means = {policy: sum(values) / len(values) for policy, values in rates.items()}
    return [
        HitRates(policy, means[policy], means[policy] - min(values), max(values) - means[policy])
        for policy, values in rates.items()
    ]


def shares(result: SimResult) -> npt.NDArray[np.float64]:
    """Return the share of the requests that each worker served."""
    served = np.bincount(result.worker[result.worker >= 0], minlength=len(result.workers))
    return np.divide(served, max(1, int(served.sum())))


def loads(result: SimResult) -> list[Curve]:
    """Return running and waiting requests of each worker over time.

    Each point is the largest load of its stretch of time, so that no peak is lost.
    """
    count = len(result.sample_s)
    if not count:
        return [Curve(name, np.empty(0), np.empty(0)) for name in result.workers]
    starts = np.unique(np.linspace(0, count, min(count, CURVE_POINTS), endpoint=False).astype(np.int64))
    load = result.samples[:, :, 0].astype(np.float64) + result.samples[:, :, 1]
    peaks = np.maximum.reduceat(load, starts, axis=0)
    return [Curve(name, result.sample_s[starts], peaks[:, at]) for at, name in enumerate(result.workers)]


def inspected(result: SimResult, count: int = INSPECTED) -> npt.NDArray[np.int64]:
    """Return rows to look at, ascending: the slowest half of the count, and others spread evenly.

    All of them have a first token.
    """
    rows = np.flatnonzero(~np.isnan(result.first_token_s))
    if len(rows) <= count:
        return rows
    ttft = (result.first_token_s - result.arrival_s)[rows]
    slowest = rows[np.argsort(-ttft, kind="stable")[: count // 2]]
    rest = np.setdiff1d(rows, slowest)
    spread = rest[np.linspace(0, len(rest) - 1, count - len(slowest)).astype(np.int64)]
    return np.union1d(slowest, spread)


def story(result: SimResult, row: int) -> str:
    """Describe the course of a request in one line."""
    worker = result.workers[result.worker[row]] if result.worker[row] >= 0 else "no worker"
    ttft = result.first_token_s[row] - result.arrival_s[row]
    retried = f", tried {result.retries[row] + 1} times" if result.retries[row] else ""
    preempted = f", preempted {result.preemptions[row]} times" if result.preemptions[row] else ""
    return (
        f"request {row}: {worker} ({result.reasons[result.reason[row]]}), "
        f"{result.workload.prompt_tokens[row]} prompt tokens, {result.predicted_tokens[row]} expected cached, "
        f"{result.cached_tokens[row]} were, first token after {ttft:.3f} s{retried}{preempted}"
    )


def check(results: Sequence[SimResult]) -> None:
    """Check that there is something to draw."""
    if not results:
        raise ValueError("there is no run to draw; simulate one first")
