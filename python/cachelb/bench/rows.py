"""One measured figure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One contender at one task.

    Attributes:
        task: Name of the work, such as "match/2048": with the prompt's length in tokens.
        contender: The structure that did it.
        p50: Median of one call, in `unit`, or the only figure.
        p99: 99th percentile, in `unit`; None where there is one figure only.
        unit: "us", "ns/block", "bytes/block", "blocks/s", "calls/s" or "wrong".
        wrong: Answers that differ from the model's; None for work without an answer.
        answers: Answers that were compared.
        note: Conditions of the figure.
        p10: 10th percentile, close to the time of a call that nothing else on the machine interrupts.
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
