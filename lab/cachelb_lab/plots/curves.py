"""Data of the figures, of bounded size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from cachelb_lab.sim.contender import KV_EVENTS, ORACLE, POOL_BLIND
from cachelb_lab.sim.experiments.comparison import Cell, Comparison, Spread
from cachelb_lab.sim.figures.metrics import hit_rate, predicted_rate
from cachelb_lab.sim.result import SimResult

if TYPE_CHECKING:
    import numpy.typing as npt

    from cachelb_lab.sim.experiments.comparison import Setting

    Floats = npt.NDArray[np.float64]

CURVE_POINTS = 160
"""Points of a curve; more than a screen or a page shows is only weight."""

Runs: TypeAlias = Comparison | Sequence[SimResult]
Ladder: TypeAlias = "dict[str, Spread]"

RUNGS = {
    "ideal": "one cache without limit",
    "capacity": "one LRU pool of all caches",
    "oracle": "same policy, exact knowledge",
    "chosen": "predicted when picked",
    "delivered": "cached in the engine",
}
"""Hit rates of a ladder, from the bound on all policies to the result."""

_BOUNDS = {"ideal": "infinite_rate", "capacity": "bound_rate"}
_OWN = {"chosen": "predicted_rate", "delivered": "hit_rate"}


@dataclass(frozen=True, eq=False)
class Curve:
    """One line."""

    name: str  # in the legend
    x: Floats  # ascending
    y: Floats


def results_of(runs: Runs) -> list[SimResult]:
    """Return runs, of a comparison those of the first seed; where a setting is swept, policies named with its value."""
    if isinstance(runs, Comparison):
        return [replace(cell.result, policy=_label(runs, cell)) for cell in runs.cells]
    if not runs:
        raise ValueError("there is no run to draw; simulate one first")
    return list(runs)


def by_policy(results: Iterable[SimResult]) -> dict[str, list[SimResult]]:
    """Group runs of several seeds by policy, in order of first mention."""
    grouped: dict[str, list[SimResult]] = {}
    for result in results:
        grouped.setdefault(result.policy, []).append(result)
    return grouped


def distribution(name: str, values: Floats, of: int | None = None) -> Curve:
    """Return the share of values up to each value, in at most `CURVE_POINTS` points that end with the largest.

    The share is of the values, or of so many requests.
    """
    ordered = np.sort(values)
    if not len(ordered):
        return Curve(name, ordered, ordered)
    rows = np.unique(np.linspace(0, len(ordered) - 1, CURVE_POINTS).round().astype(np.int64))
    return Curve(name, ordered[rows], (rows + 1.0) / (len(ordered) if of is None else of))


def distributions(results: Iterable[SimResult], figure: str, *, of_all: bool = False) -> list[Curve]:
    """Return the distribution of ``ttft_s``, ``tpot_s`` or ``e2e_s`` per policy over its runs.

    It is of the requests that have the figure, or `of_all`, in which the others never meet a limit.
    """
    return [
        distribution(
            policy,
            np.concatenate([getattr(run, figure) for run in runs]),
            sum(len(run.workload) for run in runs) if of_all else None,
        )
        for policy, runs in by_policy(results).items()
    ]


def ladders(runs: Runs) -> dict[str, Ladder]:
    """Return hit rates by policy and rung, over the seeds; the bounds are known of comparisons only.

    A run with exact knowledge is a rung of the policy that it is named after, if that ran too.
    """
    found: dict[tuple[str, Setting | None], tuple[str, Ladder]]
    if isinstance(runs, Comparison):
        found = {(cell.policy, cell.value): (_label(runs, cell), _of_cell(cell)) for cell in runs.cells}
    else:
        found = {(policy, None): (policy, _of_runs(same)) for policy, same in by_policy(results_of(runs)).items()}
    oracles = {key: rates["delivered"] for key, (_, rates) in found.items() if key[0].endswith(ORACLE)}
    ladder: dict[str, Ladder] = {}
    named: set[object] = set()
    for (policy, value), (label, rates) in found.items():
        oracle = (_without_ending(policy) + ORACLE, value)
        if (policy, value) not in oracles and oracle in oracles:
            rates["oracle"] = oracles[oracle]
            named.add(found[oracle][0])
        ladder[label] = rates
    return {label: rates for label, rates in ladder.items() if label not in named}


def loads_by_worker(result: SimResult) -> dict[str, Floats]:
    """Return requests, tokens and busy seconds of each worker."""
    rows = result.worker >= 0
    served, workers = result.worker[rows], len(result.workers)
    tokens = result.workload.prompt_tokens.astype(np.float64) + result.workload.output_tokens
    return {
        "requests": np.bincount(served, minlength=workers).astype(np.float64),
        "tokens": np.bincount(served, weights=tokens[rows], minlength=workers).astype(np.float64),
        "busy s": result.busy_s,
    }


def by_position(name: str, values: Floats) -> Curve:
    """Return values by worker; of more workers than `CURVE_POINTS`, the largest of each stretch."""
    starts = _starts(len(values))
    return Curve(name, starts.astype(np.float64), np.maximum.reduceat(values, starts))


def loads(result: SimResult) -> tuple[Curve, Curve, Curve]:
    """Return running and waiting requests over time: of the least loaded worker, the mean one and the most loaded.

    Points are the largest loads of a stretch of time, of the least loaded worker the smallest, so no peak is lost.
    """
    names = ("least", "mean", "most")
    if not len(result.sample_s):
        least, mean, most = (Curve(name, np.empty(0), np.empty(0)) for name in names)
        return least, mean, most
    starts = _starts(len(result.sample_s))
    load = result.samples[:, :, 0].astype(np.float64) + result.samples[:, :, 1]
    lines = (
        np.minimum.reduceat(load.min(axis=1), starts),
        np.maximum.reduceat(load.mean(axis=1), starts),
        np.maximum.reduceat(load.max(axis=1), starts),
    )
    least, mean, most = (Curve(name, result.sample_s[starts], y) for name, y in zip(names, lines, strict=True))
    return least, mean, most


def _starts(count: int) -> npt.NDArray[np.int64]:
    """Return the starts of at most `CURVE_POINTS` stretches."""
    return np.unique(np.linspace(0, count, min(count, CURVE_POINTS), endpoint=False).astype(np.int64))


def _label(comparison: Comparison, cell: Cell) -> str:
    """Name a cell."""
    sweep = comparison.sweep
    return cell.policy if sweep is None else f"{cell.policy}, {sweep.name} {cell.value}"


def _of_cell(cell: Cell) -> Ladder:
    return {rung: cell.spreads[name] for rung, name in (_BOUNDS | _OWN).items()}


def _of_runs(runs: Sequence[SimResult]) -> Ladder:
    return {
        "chosen": Spread.of([predicted_rate(run) for run in runs]),
        "delivered": Spread.of([hit_rate(run) for run in runs]),
    }


def _without_ending(policy: str) -> str:
    return policy.removesuffix(POOL_BLIND).removesuffix(KV_EVENTS)
