"""Calls of several contenders, timed in turns."""

from __future__ import annotations

import gc
import statistics
from time import perf_counter_ns
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_TURN = 8


def in_turns(contenders: Mapping[str, Callable[[int], object]], calls: int) -> dict[str, list[float]]:
    """Time single calls of every contender, a few of each at a time, so that a slow moment of the machine meets all.

    Each contender is called with 0, 1, 2 ...; the times are in microseconds.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    enabled = gc.isenabled()
    gc.disable()
    try:
        for begin in range(0, calls, _TURN):
            for name, call in contenders.items():
                kept = times[name]
                for i in range(begin, min(begin + _TURN, calls)):
                    start = perf_counter_ns()
                    call(i)
                    kept.append((perf_counter_ns() - start) / 1e3)
    finally:
        if enabled:
            gc.enable()
    return times


def p50_p99(times: list[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile of at least two times.

    Example:
        >>> p50_p99([1.0, 2.0, 9.0])[0]
        2.0
    """
    return statistics.median(times), statistics.quantiles(times, n=100, method="inclusive")[98]


def p10(times: list[float]) -> float:
    """Return the 10th percentile.

    Example:
        >>> p10([1.0, 1.0, 1.0, 9.0])
        1.0
    """
    return statistics.quantiles(times, n=10, method="inclusive")[0]
