"""How much a fleet can take: the highest rate at which queues do not grow without end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from cachelb.sim.result import SimResult

LONGEST_S = 10
"""No mean wait beyond that counts as keeping up."""

_THIRDS = 3


def keeps_up(result: SimResult, idle: SimResult | None = None) -> bool:
    """Return whether queues stayed bounded.

    Where they do not, the last third of the requests waits 5/3 as long as the second.

    Args:
        result: A run at one rate.
        idle: The same requests where none waits for another. Then only what they wait beyond that counts, and a tenth
            of it is let pass, so that prompts which take long on any fleet are no queue.

    Returns:
        Whether they did; False where fewer than three requests were served whole.
    """
    waits, least = waits_of_thirds(result), waits_of_thirds(idle) if idle is not None else np.zeros(_THIRDS)
    if waits is None or least is None:
        return False
    delay = np.maximum(0.0, waits - least)
    return bool(delay[-1] < 1.4 * delay[-2] + 0.1 * (1 + least[-1]) and delay[-1] < LONGEST_S + least[-1])


def waits_of_thirds(result: SimResult) -> npt.NDArray[np.float64] | None:
    """Return how long the requests waited for their first tokens.

    Args:
        result: A run.

    Returns:
        Means of the first, second and last third of those served whole, by arrival; None where these are fewer than
        three.
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
    """Search for the highest rate that is borne.

    Args:
        bears: Whether a rate is.
        start: Where to begin.
        step: Factor between rates until one is borne and one is not.
        probes: Halvings, on a scale of logarithms, of what lies between.
        most_steps: Most factors up or down from the start; None for no such bound.

    Returns:
        A rate that is, less than the `2 ** probes`-th root of `step` below one that is not.

    Raises:
        ValueError: All rates within ``most_steps`` are borne, or none is.

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
