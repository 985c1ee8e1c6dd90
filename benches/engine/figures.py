"""Figures of episodes and of rounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Episode = dict[str, Any]
Rounds = list[dict[str, Episode]]
BASE = "round-robin"
EVEN = 0.1
"""Times of a round count if the share of other processes differs by no more than this between its episodes."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure of every round."""

    values: tuple[float, ...]

    def show(self, form: Callable[[float], str]) -> str:
        """Write the median, and least and most in brackets."""
        return f"{form(median(self.values))} ({form(min(self.values))}-{form(max(self.values))})"


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


MEASURES: dict[str, Callable[[Episode], float]] = {
    "mean": lambda episode: fmean(each["first_s"] for each in episode["requests"]),
    "p50": lambda episode: quantile([each["first_s"] for each in episode["requests"]], 0.5),
    "p99": lambda episode: quantile([each["first_s"] for each in episode["requests"]], 0.99),
    "later": lambda episode: fmean(each["first_s"] for each in episode["requests"] if each["turn"] > 1),
    "wall": lambda episode: float(episode["wall_s"]),
    "cached": lambda episode: _share(episode, "cached"),
    "possible": lambda episode: _share(episode, "possible"),
    "others": lambda episode: float(episode["others"]),
}
"""The figures of an episode."""


def _share(episode: Episode, what: str) -> float:
    of_all, of_these = (sum(each[name] for each in episode["requests"]) for name in ("prompt", what))
    return float(of_these / of_all)


def spread(rounds: Rounds, policy: str, measure: str) -> Spread:
    """Collect a figure of a policy over the rounds."""
    return Spread(tuple(MEASURES[measure](each[policy]) for each in rounds))


def ratio(rounds: Rounds, policy: str, measure: str) -> Spread:
    """Collect how many times round-robin's of the same round a figure is."""
    found = MEASURES[measure]
    return Spread(tuple(found(each[policy]) / found(each[BASE]) for each in rounds))


def even_numbers(rounds: Rounds) -> list[int]:
    """Return which rounds have times that can be compared."""
    others = [[MEASURES["others"](episode) for episode in each.values()] for each in rounds]
    return [number for number, took in enumerate(others) if max(took) - min(took) <= EVEN]


def even(rounds: Rounds) -> Rounds:
    """Return the rounds whose times can be compared."""
    return [rounds[number] for number in even_numbers(rounds)]
