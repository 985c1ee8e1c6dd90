"""Results as a table: for data frames, CSV, Parquet, and readers of Arrow."""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Table", "Tabular"]

_MOST_SIGNED = (1 << 63) - 1


class Tabular(ABC):
    """A result that is a table.

    Example:
        >>> from cachelb_lab.sim import FleetSpec, build, simulate
        >>> run = simulate(build("rag", seed=1, count=20), FleetSpec.parse("2xh100"))
        >>> isinstance(run, Tabular), len(run.table())
        (True, 20)
    """

    __slots__ = ()

    @abstractmethod
    def table(self) -> Table:
        """Return the table.

        Returns:
            Columns of equal length.
        """

    def to_dataframe(self, library: str = "pandas") -> Any:  # noqa: ANN401 - of another package
        """Return the table as a data frame.

        Args:
            library: ``"pandas"`` or ``"polars"``, which must be installed.

        Returns:
            A ``pandas.DataFrame`` or a ``polars.DataFrame``.

        Raises:
            ValueError: There is no such library.
            ModuleNotFoundError: It is not installed.
        """
        if library not in ("pandas", "polars"):
            raise ValueError(f"library must be 'pandas' or 'polars', got {library!r}")
        frames = _library(library)
        columns = self.table().columns
        if library == "pandas":
            return frames.DataFrame(dict(columns))
        lists = {name: column.tolist() if column.dtype == object else column for name, column in columns.items()}
        return frames.DataFrame(lists, nan_to_null=True)

    def to_csv(self, path: str | Path) -> None:
        """Write the table as CSV in UTF-8, with a header; a missing value is empty.

        Args:
            path: The file, which is replaced.

        Raises:
            OSError: It cannot be written.
        """
        columns = self.table().columns
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            lines = csv.writer(file)
            lines.writerow(columns)
            # NaN is the only value that differs from itself.
            values = ([value if value == value else None for value in column.tolist()] for column in columns.values())  # noqa: PLR0124
            lines.writerows(zip(*values, strict=True))

    def to_parquet(self, path: str | Path) -> None:
        """Write the table as Parquet.

        Args:
            path: The file, which is replaced.

        Raises:
            OSError: It cannot be written.
            ModuleNotFoundError: pyarrow is not installed.
        """
        table = _arrow(self.table())
        import_module("pyarrow.parquet").write_table(table, path)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the table as an Arrow stream, for pyarrow, polars and others. Needs pyarrow."""
        return _arrow(self.table()).__arrow_c_stream__(requested_schema)


@dataclass(frozen=True, slots=True, eq=False)
class Table(Tabular):
    """Named columns of equal length.

    Numbers and truth values are numpy arrays; a missing number is NaN, so a column of integers that lacks one is of
    floats. Text is an array of objects, None where it is missing.

    Attributes:
        columns: By name, in order.

    Raises:
        ValueError: Columns differ in length.

    Example:
        >>> table = Table.of([{"worker": "gpu0", "ttft_s": 0.25}, {"worker": None, "ttft_s": None}])
        >>> len(table), list(table.columns), table.columns["ttft_s"].tolist()
        (2, ['worker', 'ttft_s'], [0.25, nan])
    """

    columns: Mapping[str, npt.NDArray[Any]]

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns must be of one length, got {lengths}")

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def __repr__(self) -> str:
        return f"Table({len(self):,} rows: {', '.join(self.columns)})"

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> Table:
        """Build a table from rows.

        Args:
            rows: Values by name: numbers, truth values or text; None, and a name that a row lacks, is missing. A column
                that mixes these is of text.

        Returns:
            The table; columns in order of first mention.
        """
        given = list(rows)
        names = dict.fromkeys(name for row in given for name in row)
        return cls({name: _column([row.get(name) for row in given]) for name in names})

    def table(self) -> Table:
        """Return the table itself.

        Returns:
            This object.
        """
        return self


def one_of(of: str, tables: Mapping[str, Callable[[], Iterable[Mapping[str, Any]]]]) -> Table:
    """Return that of several tables which `of` names.

    Example:
        >>> one_of("cells", {"runs": list})
        Traceback (most recent call last):
        ValueError: of must be one of 'runs', got 'cells'
    """
    if of not in tables:
        raise ValueError(f"of must be one of {', '.join(map(repr, tables))}, got {of!r}")
    return Table.of(tables[of]())


def _column(values: Sequence[Any]) -> npt.NDArray[Any]:
    """Return values as an array."""
    import numpy as np

    given = [value for value in values if value is not None]
    missing = len(given) < len(values)
    truths = sum(isinstance(value, bool) for value in given)
    if given and truths == len(given) and not missing:
        return np.array(values, dtype=np.bool_)
    if given and not truths and all(isinstance(value, Real) for value in given):
        if missing or not all(isinstance(value, Integral) for value in given):
            return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
        return np.array(values, dtype=np.uint64 if max(given) > _MOST_SIGNED else np.int64)
    column = np.empty(len(values), dtype=object)
    column[:] = values if truths == len(given) else [None if value is None else str(value) for value in values]
    return column


def _arrow(table: Table) -> Any:  # noqa: ANN401 - pyarrow's
    """Return a table of pyarrow; missing values are null."""
    arrow = _library("pyarrow")
    return arrow.table({name: arrow.array(column, from_pandas=True) for name, column in table.columns.items()})


def _library(name: str) -> Any:  # noqa: ANN401 - a module
    """Import a package that no extra brings."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{name} is not installed; run: pip install {name}", name=name) from error
