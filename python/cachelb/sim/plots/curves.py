"""What the pictures show, as numbers of bounded size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cachelb.sim.metrics import hit_rate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from cachelb.sim.result import SimResult

CURVE_POINTS = 400
"""Points of a distribution or of a course of time; more than a screen shows is only weight."""
INSPECTED = 3_000
"""Requests of one run that can be looked at one by one."""


@dataclass(frozen=True, eq=False)
class Curve:
    """One line.

    Attributes:
        name: What the legend says.
        x: Ascending.
        y: As many.
    """

    name: str
    x: npt.NDArray[np.float64]
    y: npt.NDArray[np.float64]


def by_policy(results: Iterable[SimResult]) -> dict[str, list[SimResult]]:
    """Group runs of several seeds.

    Args:
        results: Runs.

    Returns:
        Runs by policy, in order of first mention.
    """
    grouped: dict[str, list[SimResult]] = {}
    for result in results:
        grouped.setdefault(result.policy, []).append(result)
    return grouped


def distribution(name: str, values: npt.NDArray[np.float64]) -> Curve:
    """Return the share of values up to each value.

    Args:
        name: What the legend says.
        values: In any order.

    Returns:
        At most `CURVE_POINTS` points, the last of them the largest value.
    """
    ordered = np.sort(values)
    if not len(ordered):
        return Curve(name, ordered, ordered)
    rows = np.unique(np.linspace(0, len(ordered) - 1, CURVE_POINTS).round().astype(np.int64))
    return Curve(name, ordered[rows], (rows + 1.0) / len(ordered))


def ttft_distributions(results: Iterable[SimResult]) -> list[Curve]:
    """Return the distribution of the time to the first token of each policy.

    Args:
        results: Runs; those of one policy are laid together.

    Returns:
        A curve per policy.
    """
    return [
        distribution(policy, np.concatenate([run.ttft_s for run in runs]))
        for policy, runs in by_policy(results).items()
    ]


@dataclass(frozen=True, slots=True)
class HitRates:
    """What the seeds of one policy found cached.

    Attributes:
        policy: Its name.
        mean: Of all seeds.
        below: From the lowest to the mean.
        above: From the mean to the highest.
    """

    policy: str
    mean: float
    below: float
    above: float


def hit_rates(results: Iterable[SimResult]) -> list[HitRates]:
    """Return the shares of prompt tokens that were cached.

    Args:
        results: Runs.

    Returns:
        One per policy.
    """
    rates = {policy: [hit_rate(run) for run in runs] for policy, runs in by_policy(results).items()}
    means = {policy: sum(values) / len(values) for policy, values in rates.items()}
    return [
        HitRates(policy, means[policy], means[policy] - min(values), max(values) - means[policy])
        for policy, values in rates.items()
    ]


def shares(result: SimResult) -> npt.NDArray[np.float64]:
    """Return the share of the requests that each worker served.

    Args:
        result: A run.

    Returns:
        One per worker.
    """
    served = np.bincount(result.worker[result.worker >= 0], minlength=len(result.workers))
    return np.divide(served, max(1, int(served.sum())))


def loads(result: SimResult) -> list[Curve]:
    """Return running and waiting requests of each worker over time.

    Args:
        result: A run.

    Returns:
        A curve per worker; each point is the largest load of its stretch of time, so that no peak is lost.
    """
    count = len(result.sample_s)
    if not count:
        return [Curve(name, np.empty(0), np.empty(0)) for name in result.workers]
    starts = np.unique(np.linspace(0, count, min(count, CURVE_POINTS), endpoint=False).astype(np.int64))
    load = result.samples[:, :, 0].astype(np.float64) + result.samples[:, :, 1]
    peaks = np.maximum.reduceat(load, starts, axis=0)
    return [Curve(name, result.sample_s[starts], peaks[:, at]) for at, name in enumerate(result.workers)]


def inspected(result: SimResult, count: int = INSPECTED) -> npt.NDArray[np.int64]:
    """Return which requests to look at: the slowest half of the count, and others spread evenly.

    Args:
        result: A run.
        count: At most so many.

    Returns:
        Rows of requests with a first token, ascending.
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
    """Say in a few words what became of a request.

    Args:
        result: A run.
        row: Which request.

    Returns:
        One line.
    """
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
    """Check that there is something to draw.

    Args:
        results: Runs.

    Raises:
        ValueError: There is none.
    """
    if not results:
        raise ValueError("there is no run to draw; simulate one first")
