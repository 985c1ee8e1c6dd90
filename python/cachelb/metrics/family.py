"""One metric and its series, as every exporter takes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from cachelb.common.measure import Kind

Row: TypeAlias = "tuple[tuple[str, ...], float]"
"""Values of the labels, and the value."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric and its series.

    Example:
        >>> Family("no_worker", "counter", "Selections without a worker.", "{selection}", (), [((), 3)]).rows
        [((), 3)]
    """

    name: str  # without prefix and suffix
    kind: Kind  # "counter" only ever grows, "gauge" is a state
    help: str
    unit: str  # in the notation of OpenTelemetry (UCUM)
    labels: tuple[str, ...]
    rows: Sequence[Row]
