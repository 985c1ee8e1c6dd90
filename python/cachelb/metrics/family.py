"""One metric and its series, as every exporter takes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

Row: TypeAlias = "tuple[tuple[str, ...], float]"
"""Values of the labels, and the value."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric and its series.

    Example:
        >>> Family("no_worker", "counter", "Selections that found nobody.", "{selection}", (), [((), 3)]).rows
        [((), 3)]
    """

    name: str  # without prefix and suffix
    kind: Literal["counter", "gauge"]  # "counter" only ever grows, "gauge" is a state
    help: str
    unit: str  # in the notation of OpenTelemetry (UCUM)
    labels: tuple[str, ...]
    rows: Sequence[Row]


def rows_of(values: Mapping[str, float]) -> list[Row]:
    """Make a row of each value, labelled with its key."""
    return [((label,), value) for label, value in values.items()]


def single(value: float | None) -> list[Row]:
    """Return the row of a family without labels; none for None."""
    return [] if value is None else [((), value)]


def counter(name: str, text: str, unit: str, labels: tuple[str, ...], rows: Sequence[Row]) -> Family:
    """Make a family that only ever grows; the arguments are those of `Family`."""
    return Family(name, "counter", text, unit, labels, rows)


def gauge(name: str, text: str, unit: str, labels: tuple[str, ...], rows: Sequence[Row]) -> Family:
    """Make a family that is a state; the arguments are those of `Family`."""
    return Family(name, "gauge", text, unit, labels, rows)
