"""What was measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One contender at one task.

    Attributes:
        task: What was done, such as "match/2048": with the prompt's length in tokens.
        contender: Who did it.
        p50: Median of one call, in `unit`.
        p99: 99th percentile, in `unit`; None where there is but one figure.
        unit: "us", "bytes/block" or "calls/s".
        wrong: Answers that were not the truth; None where there is no answer.
        answers: Answers that were compared.
        note: What is to be known of the figure.
    """

    task: str
    contender: str
    p50: float
    p99: float | None
    unit: str
    wrong: int | None = None
    answers: int = 0
    note: str = ""
