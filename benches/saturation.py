"""How much a fleet can take: the highest rate at which queues do not grow without end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from cachelb.sim import SimResult

LONGEST_S = 10
"""No mean wait beyond that counts as keeping up."""


def keeps_up(result: SimResult) -> bool:
    """Return whether queues stayed bounded.

    Where they do not, the last third of the requests waits 5/3 as long as the second.

    Args:
        result: A run at one rate.

    Returns:
        Whether they did.
    """
    served = np.flatnonzero(result.finished)
    order = served[np.argsort(result.arrival_s[served], kind="stable")]
    thirds = np.array_split((result.first_token_s - result.arrival_s)[order], 3)
    _, middle, last = (float(third.mean()) for third in thirds)
    return last < 1.4 * middle + 0.1 and last < LONGEST_S


def highest(bears: Callable[[float], bool], *, start: float, step: float, probes: int) -> float:
    """Search for the highest rate that is borne.

    Args:
        bears: Whether a rate is.
        start: Where to begin.
        step: Factor between rates until one is borne and one is not.
        probes: Halvings, on a scale of logarithms, of what lies between.

    Returns:
        A rate that is, less than the `2 ** probes`-th root of `step` below one that is not.
    """
    low = high = start
    while bears(high):
        low, high = high, high * step
    while not bears(low):
        low, high = low / step, low
    for _ in range(probes):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if bears(middle) else (low, middle)
    return low
