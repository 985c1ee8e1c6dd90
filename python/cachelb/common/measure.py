"""How a field of statistics is exported: declared beside the field, in its metadata, and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass, fields
from inspect import cleandoc
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

Kind = Literal["counter", "gauge"]
_KEY = "measure"


@dataclass(frozen=True, slots=True)
class Measure:
    """The metric of a field. Several fields may be rows of one metric."""

    field: str
    help: str
    name: str  # without prefix and suffix
    kind: Kind  # "counter" only ever grows, "gauge" is a state
    unit: str  # in the notation of OpenTelemetry (UCUM)
    labels: tuple[str, ...]  # beside those of the owner; the keys of a mapping, or a text, whose row is 1
    row: str | None  # the one label of a number that is a row among others


def counter(name: str, unit: str, *labels: str, row: str | None = None) -> Mapping[str, Any]:
    """Declare a field that only grows."""
    return {_KEY: (name, "counter", unit, labels, row)}


def gauge(name: str, unit: str = "1", *labels: str, row: str | None = None) -> Mapping[str, Any]:
    """Declare a field that is a state."""
    return {_KEY: (name, "gauge", unit, labels, row)}


def measures(owner: type) -> list[Measure]:
    """Read the metrics of a dataclass; their help texts are the docstring's entries of the fields.

    Example:
        >>> from cachelb.types import WorkerStats
        >>> measures(WorkerStats)[1].help
        'Requests booked and not finished.'
    """
    texts = _attributes(owner.__doc__ or "")
    declared = [each for each in fields(owner) if _KEY in each.metadata]
    return [Measure(each.name, texts.get(each.name, each.name), *each.metadata[_KEY]) for each in declared]


def _attributes(docstring: str) -> dict[str, str]:
    """Read the texts of the section Attributes, each joined to one line."""
    texts: dict[str, str] = {}
    name = ""
    # Python 3.13 dedents docstrings itself.
    for line in cleandoc(docstring).partition("Attributes:\n")[2].partition("\n\n")[0].splitlines():
        if line.startswith(" " * 5):
            texts[name] += f" {line.strip()}"
        else:
            name, _, text = line.strip().partition(": ")
            texts[name] = text
    return texts
