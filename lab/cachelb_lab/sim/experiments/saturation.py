"""Capacity of a fleet: the highest rate at which queues stay bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from cachelb_lab.sim.result import SimResult

LONGEST_S = 10
"""No mean wait beyond that counts as keeping up."""

_THIRDS = 3


def keeps_up(result: SimResult, idle: SimResult | None = None) -> bool:
    """Return whether queues stayed bounded; False where fewer than three requests were served whole.

    Where they do not, the last third of the requests waits 5/3 as long as the second. With the same requests on an idle
    fleet, only the wait beyond that counts, less a tenth of it, so that prompts which take long on any fleet do not
    look like a queue.
    """
    waits, least = waits_of_thirds(result), waits_of_thirds(idle) if idle is not None else np.zeros(_THIRDS)
    if waits is None or least is None:
        return False
    delay = np.maximum(0.0, waits - least)
    return bool(delay[-1] < 1.4 * delay[-2] + 0.1 * (1 + least[-1]) and delay[-1] < LONGEST_S + least[-1])


def waits_of_thirds(result: SimResult) -> npt.NDArray[np.float64] | None:
    """Return the mean wait for the first token of each third of the requests served whole, by arrival.

    None for fewer than three.
    """
    served = np.flatnonzero(result.finished)
    if len(served) < _THIRDS:
        return None
    order = served[np.argsort(result.arrival_s[served], kind="stable")]
    thirds = np.array_split((result.first_token_s - result.arrival_s)[order], _THIRDS)
    return np.array([third.mean() for third in thirds])


def highest(
    bears: Callable[[float], bool], *, start: float, step: float, probes: int, most_steps: int | None = None
) -> float:
    """Search for the highest sustainable rate, less than the `2 ** probes`-th root of `step` below one that is not.

    `step` is the factor between rates until one is sustained and one is not; at most `most_steps` of them up or down.
    Then the interval is halved `probes` times on a logarithmic scale.

    Example:
        >>> highest(lambda rate: rate <= 100, start=1.0, step=2.0, probes=6)
        99.776...
    """
    low = high = start
    steps = 0
    while bears(high):
        steps += 1
        if steps == most_steps:
            raise ValueError(f"even {high:g} is borne")
        low, high = high, high * step
    while not bears(low):
        steps += 1
        if steps == most_steps:
            raise ValueError(f"not even {low:g} is borne")
        low, high = low / step, low
    for _ in range(probes):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if bears(middle) else (low, middle)
    return low
