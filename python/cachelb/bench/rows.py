"""Rows of measurements."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One contender at one task."""

    task: str  # such as "match/2048", with the prompt's length in tokens
    contender: str
    p50: float  # median of one call in `unit`, or the only figure
    p99: float | None  # in `unit`; None where there is only one figure
    unit: str  # "us", "ns/block", "bytes/block", "blocks/s", "calls/s" or "wrong"
    wrong: int | None = None  # answers that differ from the truth; None without answers
    answers: int = 0  # that were compared
    note: str = ""  # caveat on the figure
    p10: float | None = None  # a call undisturbed by the rest of the machine


def times(figure: float, own: float, unit: str) -> float | None:
    """Return a cost over cachelb's, 2.0 for twice as slow or large; None without a ratio. Rates are better if higher.

    Example:
        >>> times(10.0, 5.0, "us"), times(10.0, 5.0, "calls/s")
        (2.0, 0.5)
    """
    above, below = (own, figure) if unit.endswith("/s") else (figure, own)
    return above / below if below else None
