"""Results of a comparison, as values and as one JSON document.

Everything but the wall-clock figures depends on the input and the seeds alone, so two documents
compare byte for byte once the section ``wall_clock`` is put aside.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal, InvalidOperation
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from cachelb.common.arguments import listed
from cachelb.common.calls import number_or_text
from cachelb.common.table import Table, Tabular, one_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cachelb_lab.sim.figures.metrics import Cost, Metrics
    from cachelb_lab.sim.result import SimResult

Setting: TypeAlias = "int | float | str"
"""A value of a setting."""

MAX_VALUES = 1_000
"""More values than this are taken for a slip."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """A setting and its values.

    Attributes:
        name: A setting of the run (`RUN_SETTINGS`), or an option of the router or of the policies.
        values: At least one, each once.

    Raises:
        ValueError: There is no value, or one twice.
    """

    name: str
    values: tuple[Setting, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(listed("values", self.values, MAX_VALUES)))
        if not self.values or len(set(self.values)) != len(self.values):
            raise ValueError(f"sweep {self.name!r} needs values that differ, got {list(self.values)}")

    @classmethod
    def parse(cls, text: str) -> Sweep:
        """Read a sweep from its short form.

        Args:
            text: ``NAME=FROM:TO:STEP``, both ends included, or ``NAME=VALUE,VALUE``.

        Returns:
            The sweep. Hyphens in the name count as underscores.

        Raises:
            ValueError: The text has another form.

        Example:
            >>> Sweep.parse("cache-threshold=0.1:0.5:0.2")
            Sweep(name='cache_threshold', values=(0.1, 0.3, 0.5))
            >>> Sweep.parse("mode=sticky,hash").values, Sweep.parse("gateways=1:4:1").values
            (('sticky', 'hash'), (1, 2, 3, 4))
        """
        name, _, written = text.partition("=")
        name = name.strip().replace("-", "_")
        if not name or not written.strip():
            raise ValueError(f"cannot read {text!r}; write NAME=FROM:TO:STEP or NAME=VALUE,VALUE")
        if ":" in written:
            return cls(name, _steps(text, written.split(":")))
        return cls(name, tuple(number_or_text(part.strip()) for part in written.split(",")))


def _steps(text: str, parts: Sequence[str]) -> tuple[Setting, ...]:
    """Return the values of a range."""
    begin = step = Decimal(0)
    try:
        begin, end, step = map(Decimal, parts)
        count = int((end - begin) / step) + 1
    except (ValueError, ArithmeticError, InvalidOperation):
        count = 0
    if not 0 < count <= MAX_VALUES:
        raise ValueError(f"cannot read {text!r}; write FROM:TO:STEP with numbers that go up, such as 0.1:0.9:0.2")
    # Decimals: 0.1 + 0.2 is 0.3 to people.
    return tuple(number_or_text(str(begin + place * step)) for place in range(count))


SCHEMA = 2
"""Version of the JSON document; a new key keeps it, a changed or removed one raises it."""


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure over the seeds."""

    mean: float
    low: float
    high: float
    std: float  # of the sample; 0 for one seed

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarise a figure, one value per seed.

        Example:
            >>> Spread.of([1.0, 3.0])
            Spread(mean=2.0, low=1.0, high=3.0, std=1.4142135623730951)
        """
        std = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        return cls(float(np.mean(values)), min(values), max(values), std)


@dataclass(frozen=True, eq=False)
class Run:
    """One policy with one seed."""

    seed: int  # of the router, and of the workload where that is made from seeds
    metrics: Metrics
    cost: Cost  # in real time
    result: SimResult | None  # kept of the first seed only


@dataclass(frozen=True, eq=False)
class Cell:
    """One policy under one value of the swept setting."""

    policy: str
    value: Setting | None  # None where nothing is swept
    runs: tuple[Run, ...]  # one per seed

    @property
    def result(self) -> SimResult:
        """Return the run with the first seed."""
        result = self.runs[0].result
        assert result is not None  # noqa: S101 - kept of the first seed
        return result

    @cached_property
    def spreads(self) -> dict[str, Spread]:
        """Return every figure over the seeds, nested ones by a dotted name; without those that a seed lacks."""
        tables = [dotted(run.metrics.as_dict()) for run in self.runs]
        columns = {key: [table[key] for table in tables if table[key] is not None] for key in tables[0]}
        return {key: Spread.of(values) for key, values in columns.items() if len(values) == len(tables)}


@dataclass(frozen=True, eq=False)
class Comparison(Tabular):
    """All policies on one workload and one fleet.

    Attributes:
        workload: Description of the requests of the first seed.
        fleet: Description of the fleet.
        settings: Signals, gateways, limits, options.
        seeds: One run each.
        sweep: The swept setting, if there is one.
        cells: By value, then by policy, in the order given.

    Example:
        >>> from cachelb_lab.sim import FleetSpec, build, compare
        >>> fleet = FleetSpec.parse("2xh100")
        >>> comparison = compare(build("rag", seed=1, count=20), fleet, ["random", "cache-aware"])
        >>> [cell.policy for cell in comparison.cells]
        ['random', 'cache-aware']
    """

    workload: Mapping[str, Any]
    fleet: Mapping[str, Any]
    settings: Mapping[str, Any]
    seeds: tuple[int, ...]
    sweep: Sweep | None
    cells: tuple[Cell, ...]

    def table(self, of: str = "runs") -> Table:
        """Return the figures as a table.

        Args:
            of: ``"runs"``, one row per policy, swept value and seed; or ``"cells"``, with the mean, lowest, highest and
                standard deviation over the seeds of every figure.

        Returns:
            A column per figure, named as in the JSON document, with a dot in nested names.

        Raises:
            ValueError: There is no such table.
        """
        return one_of(of, {"runs": self._run_rows, "cells": self._cell_rows})

    def _run_rows(self) -> Iterator[dict[str, Any]]:
        for cell in self.cells:
            for run in cell.runs:
                place = {"policy": cell.policy, "value": cell.value, "seed": run.seed}
                yield place | dotted(run.metrics.as_dict())

    def _cell_rows(self) -> Iterator[dict[str, Any]]:
        for cell in self.cells:
            spreads = {key: asdict(spread) for key, spread in cell.spreads.items()}
            yield {"policy": cell.policy, "value": cell.value, "seeds": len(cell.runs)} | dotted(spreads)

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON values.

        Returns:
            A document whose only part that differs between equal comparisons is ``wall_clock``.
        """
        return {
            "schema": SCHEMA,
            "workload": dict(self.workload),
            "fleet": dict(self.fleet),
            "settings": dict(self.settings),
            "seeds": list(self.seeds),
            "sweep": None if self.sweep is None else {"name": self.sweep.name, "values": list(self.sweep.values)},
            "cells": [
                {
                    "policy": cell.policy,
                    "value": cell.value,
                    "runs": [{"seed": run.seed, "metrics": run.metrics.as_dict()} for run in cell.runs],
                    "spread": {key: asdict(spread) for key, spread in cell.spreads.items()},
                }
                for cell in self.cells
            ],
            "wall_clock": [
                {"policy": cell.policy, "value": cell.value, "seed": run.seed, **asdict(run.cost)}
                for cell in self.cells
                for run in cell.runs
            ],
        }

    def to_json(self) -> str:
        """Return `as_dict` as text.

        Returns:
            Indented JSON.
        """
        return json.dumps(self.as_dict(), indent=2, allow_nan=False)


def dotted(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the figures of nested tables by dotted names; reasons are not figures."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= {} if key == "reasons" else dotted(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
