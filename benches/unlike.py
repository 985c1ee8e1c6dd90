"""How unlike the halves of traces are, and how much of one a policy may have met while it was made on the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cachelb_lab.sim.league import Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from cachelb_lab.sim.workloads import Workload

HEADS = (
    "trace",
    "requests",
    "prompt tokens, median",
    "output tokens, median",
    "prompts",
    "outputs",
    "gaps",
    "blocks seen",
)


def distance(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> float:
    """Return the distance of two distributions: the largest difference of their shares up to a value.

    Example:
        >>> distance(np.array([1.0, 2.0]), np.array([1.0, 2.0])), distance(np.array([1.0]), np.array([2.0]))
        (0.0, 1.0)
    """
    at = np.concatenate([one, other])
    shares = [np.searchsorted(np.sort(each), at, side="right") / len(each) for each in (one, other)]
    return float(np.abs(shares[0] - shares[1]).max())


def gaps(workload: Workload) -> npt.NDArray[np.float64]:
    """Return the times between arrivals, by their mean."""
    times: npt.NDArray[np.float64] = np.diff(np.sort(workload.arrival_s[np.isfinite(workload.arrival_s)]))
    by_mean: npt.NDArray[np.float64] = times / times.mean()
    return by_mean


def unlike(sources: Sequence[str], seed: int) -> tuple[Sequence[str], list[list[str]]]:
    """Return heads and rows of a table: each trace's half to report, beside the one to develop on."""
    rows = []
    for trace in map(Trace.parse, dict.fromkeys(sources)):
        develop, report = (trace.requests(seed, part) for part in ("develop", "report"))
        measures = [
            (each.prompt_tokens.astype(np.float64), each.output_tokens.astype(np.float64), gaps(each))
            for each in (develop, report)
        ]
        seen = float(np.isin(report.hashes, develop.hashes).mean()) if len(report.hashes) else 0.0
        medians = [" / ".join(f"{np.median(half[at]):,.0f}" for half in measures) for at in (0, 1)]
        distances = [f"{distance(*pair):.2f}" for pair in zip(*measures, strict=True)]
        rows.append([trace.label, f"{len(develop):,} / {len(report):,}", *medians, *distances, f"{seen:.0%}"])
    return HEADS, rows
