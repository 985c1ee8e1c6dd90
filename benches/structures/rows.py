"""One measured figure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One contender at one task."""

    task: str
    contender: str
    p50: float
    p99: float | None
    unit: str
    wrong: int | None = None
    answers: int = 0
    note: str = ""
    p10: float | None = None
