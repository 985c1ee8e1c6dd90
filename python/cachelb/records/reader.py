"""Reads record files, older ones first, and skips lines that are not records."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from cachelb.common.table import Table, Tabular
from cachelb.records.schema import SchemaError, read_row
from cachelb.types import DecisionRecord

_NAMED = 20
LONGEST = 1 << 20
"""Bytes of a line at most."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is not a record.

    Attributes:
        file: The file.
        number: Its line number, from 1.
        problem: The error.

    Example:
        >>> str(BadLine("decisions.jsonl", 7, "not JSON"))
        'decisions.jsonl:7: not JSON'
    """

    file: str
    number: int
    problem: str

    def __str__(self) -> str:
        """Name the line as compilers do."""
        return f"{self.file}:{self.number}: {self.problem}"


@dataclass(slots=True)
class RecordFiles(Tabular):
    """Record files, and the lines skipped so far. Read line by line: a file may be larger than memory.

    Attributes:
        files: The files, oldest first.
        lines: Lines read.
        lost: Records that the files name as missing.
        bad: Lines that are not records.
        bad_lines: The first of them.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from cachelb.records import read_records
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "decisions.jsonl")
        ...     _ = path.write_text("no record")
        ...     files = read_records(path)
        ...     print(list(files.decisions()), files.lines, files.bad)
        [] 1 1
    """

    files: tuple[Path, ...]
    lines: int = 0
    lost: int = 0
    bad: int = 0
    bad_lines: list[BadLine] = field(default_factory=list)

    def decisions(self) -> Iterator[DecisionRecord]:
        """Read every record, and count everything else.

        Yields:
            The records, in the order of the files.

        Raises:
            OSError: A file cannot be read.
        """
        for record, _ in self.read(lambda record, _: record):
            if record is not None:
                yield record

    def read(self, take: Callable[[DecisionRecord | None, dict[str, Any]], T]) -> Iterator[tuple[T, dict[str, Any]]]:
        """Read every line but those that count lost records.

        Args:
            take: Makes something of a record, None on the first and the last line of a capture, and all fields of its
                line. If it raises `SchemaError`, the line is a bad one.

        Yields:
            The result of `take`, and the fields.

        Raises:
            OSError: A file cannot be read.
        """
        for path in self.files:
            with path.open("rb") as file:
                for number, line in enumerate(iter(lambda: file.readline(LONGEST), b""), 1):
                    self.lines += 1
                    try:
                        record, row = read_row(line)
                        if isinstance(record, int):
                            self.lost += record
                            continue
                        taken = take(record, row)
                    except SchemaError as error:
                        self.bad += 1
                        if len(self.bad_lines) < _NAMED:
                            self.bad_lines.append(BadLine(str(path), number, str(error)))
                        continue
                    yield taken, row

    def table(self) -> Table:
        """Read every record into memory, and count everything else.

        Returns:
            One row per record; the picks of shadow policies are left out.

        Raises:
            OSError: A file cannot be read.
        """
        names = [field.name for field in fields(DecisionRecord) if field.name != "shadows"]
        return Table.of({name: getattr(record, name) for name in names} for record in self.decisions())


def read_records(path: str | os.PathLike[str]) -> RecordFiles:
    """Find a record file and the older ones that rotation left beside it.

    Args:
        path: The file that is being written; `path.1`, `path.2` and so on are read before it.

    Returns:
        The files, still to be read.

    Raises:
        FileNotFoundError: There is neither the file nor an older one.

    Example:
        >>> import tempfile
        >>> from cachelb import Router
        >>> from cachelb.records import JsonlRecords, read_records
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with Router(["gpu0"]) as router:
        ...         router.attach(JsonlRecords(f"{folder}/decisions.jsonl"))
        ...         router.select_worker(tokens=range(64)).on_complete()
        ...     [record.key for record in read_records(f"{folder}/decisions.jsonl").decisions()]
        ['gpu0']
    """
    newest = Path(path)
    older: list[tuple[int, Path]] = []
    if newest.parent.is_dir():
        pattern = re.compile(re.escape(newest.name) + r"\.([1-9]\d{0,5})")
        found = ((pattern.fullmatch(sibling.name), sibling) for sibling in newest.parent.iterdir())
        older.extend((int(match[1]), sibling) for match, sibling in found if match)
    files = [sibling for _, sibling in sorted(older, reverse=True)]
    if newest.exists():
        files.append(newest)
    if not files:
        raise FileNotFoundError(2, "No such file or directory", str(newest))
    return RecordFiles(tuple(files))
