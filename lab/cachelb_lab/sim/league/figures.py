"""The figures of one run that a league keeps, and how two of them compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from cachelb.errors import did_you_mean
from cachelb_lab.sim.experiments.comparison import dotted
from cachelb_lab.sim.figures.metrics import Metrics, Slo

Figures: TypeAlias = "Mapping[str, float | None]"
"""By name; None for a figure that a run does not have."""

SLO = Slo(ttft_s=2.0, tpot_s=0.05)
"""Limits of a request for goodput."""

NAMES = {
    "requests": "offered",
    "unserved": None,
    **{f"ttft_{each}_s": f"ttft_s.{each}" for each in ("mean", "p50", "p90", "p99")},
    **{f"{each}_mean_s": f"{each}_s.mean" for each in ("tpot", "e2e", "session")},
    "goodput_per_s": "goodput_per_s",
    "good_share": "attained",
    "hit_rate": "hit_rate",
    "of_bound": "of_bound",
    "preemptions": "preemptions",
}
"""Figures of a run, with their names among its metrics. Seconds are simulated; times are of requests served whole."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure that policies are ranked by; lower is better."""

    name: str  # one of `NAMES`
    title: str  # head of its column
    floor: float  # seconds below which values count as equal: users see no difference, and ratios would mislead
    of: tuple[str, ...] = ()  # the figures whose ratios it is the geometric mean of; has no values, and no floor, then


COMPARED = (
    Compared("ttft_mean_s", "TTFT mean", 1e-3),
    Compared("ttft_p50_s", "TTFT p50", 1e-3),
    Compared("ttft_p90_s", "TTFT p90", 1e-3),
    Compared("ttft_p99_s", "TTFT p99", 1e-3),
    Compared("tpot_mean_s", "TPOT", 1e-4),
    Compared("e2e_mean_s", "E2E", 1e-3),
    Compared("session_mean_s", "session", 1e-3),
    Compared("balanced", "balanced", 0.0, ("ttft_p50_s", "ttft_mean_s", "ttft_p99_s", "e2e_mean_s")),
)
"""The figures that tables compare; ``balanced`` is the aim of the objective of that name."""


def figures_of(metrics: Metrics) -> dict[str, float | None]:
    """Return the figures that a league keeps of a run measured with `SLO`, by `NAMES`.

    Example:
        >>> from cachelb_lab.sim import FleetSpec, build, compare
        >>> found = compare(build("rag", seed=1, count=20), FleetSpec.parse("2xh100"), ["random"], slo=SLO)
        >>> figures = figures_of(found.cells[0].runs[0].metrics)
        >>> figures["requests"], figures["session_mean_s"]
        (20, None)
    """
    table = dotted(metrics.as_dict())
    found: dict[str, float | None] = {name: None if metric is None else table[metric] for name, metric in NAMES.items()}
    return found | {"unserved": metrics.offered - metrics.finished}


def check(figures: Figures) -> dict[str, float | None]:
    """Check the names of figures from elsewhere.

    Example:
        >>> check({"ttft_s": 1.0})
        Traceback (most recent call last):
        ValueError: leagues have no figure 'ttft_s'; did you mean 'ttft_p99_s'?
    """
    for name in figures:
        if name not in NAMES:
            raise ValueError(f"leagues have no figure {name!r}{did_you_mean(name, NAMES)}")
    return dict(figures)
