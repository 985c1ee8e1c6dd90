"""What was measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One contender at one task.

    Attributes:
        task: What was done, such as "match/2048": with the prompt's length in tokens.
        contender: Who did it.
        p50: Median of one call, in `unit`, or the one figure there is.
        p99: 99th percentile, in `unit`; None where there is but one figure.
        unit: "us", "ns/block", "bytes/block", "blocks/s", "calls/s" or "wrong".
        wrong: Answers that were not the truth; None where there is no answer.
        answers: Answers that were compared.
        note: What is to be known of the figure.
        p10: 10th percentile: what a call takes that nothing else on the machine comes between.
    """

    task: str
    contender: str
    p50: float
    p99: float | None
    unit: str
    wrong: int | None = None
    answers: int = 0
    note: str = ""
    p10: float | None = None


def times(figure: float, own: float, unit: str) -> float | None:
    """Say how many times as much as cachelb somebody costs.

    Args:
        figure: Theirs.
        own: cachelb's.
        unit: Of both. Of rates, more is better.

    Returns:
        2.0 for twice as slow or as large; None if that cannot be said.

    Example:
        >>> times(10.0, 5.0, "us"), times(10.0, 5.0, "calls/s")
        (2.0, 0.5)
    """
    above, below = (own, figure) if unit.endswith("/s") else (figure, own)
    return above / below if below else None
