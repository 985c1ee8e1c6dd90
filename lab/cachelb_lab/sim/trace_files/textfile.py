"""Lines of plain or compressed text files, with errors by line number."""

from __future__ import annotations

import gzip
import json
import lzma
import math
import sys
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from cachelb.common.extras import need
from cachelb.errors import TraceError

_SHOWN_CHARS = 60
_MAX_ID = 2**64 - 1


def read_lines(path: str | Path) -> Iterator[tuple[str, str]]:
    """Stream the lines of a text file that are not blank, each with its place as ``file:number``.

    The file may be compressed as ``.gz``, ``.xz`` or ``.zst``.
    """
    path = Path(path)
    stream, damage = _open(path)
    number = 0
    try:
        with stream as lines:
            for number, line in enumerate(lines, start=1):
                if not line.isspace():
                    yield f"{path}:{number}", line
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: not UTF-8 text after line {number} ({error.reason}); is it compressed?") from error
    except damage as error:
        raise TraceError(
            f"{path}: damaged, or its compression does not match its name, after line {number}: {error}"
        ) from error


def _open(path: Path) -> tuple[IO[str], tuple[type[Exception], ...]]:
    """Open a file by its suffix; also return the exceptions of a damaged file of that kind."""
    match path.suffix:
        case ".xz":
            return lzma.open(path, "rt", encoding="utf-8"), (EOFError, lzma.LZMAError)
        case ".gz":
            damage = (EOFError, gzip.BadGzipFile, zlib.error)
            return gzip.open(path, "rt", encoding="utf-8"), damage
        case ".zst":
            return _open_zstd(path)
        case _:
            return path.open(encoding="utf-8"), ()


def _open_zstd(path: Path) -> tuple[IO[str], tuple[type[Exception], ...]]:
    """Open a zstd file with the standard library from Python 3.14 on, else with zstandard."""
    if sys.version_info >= (3, 14):
        from compression import zstd

        return zstd.open(path, "rt", encoding="utf-8"), (EOFError, zstd.ZstdError)
    need(f"reading {path}", "zstandard")
    import zstandard

    return zstandard.open(path, "rt", encoding="utf-8"), (zstandard.ZstdError,)


# === fields of a row ===


def json_object(line: str, where: str) -> dict[str, Any]:
    """Parse a line that holds one JSON object."""
    try:
        row = json.loads(line)
    except ValueError as error:
        raise TraceError(f"{where}: not JSON: {error}") from error
    if not isinstance(row, dict):
        raise TraceError(f"{where}: expected a JSON object, got {shown(row)}")
    return row


def whole(row: Mapping[str, Any], key: str, where: str) -> int:
    """Return a count of a row: a whole number, 0 or more.

    Example:
        >>> whole({"input_length": -1}, "input_length", "trace.jsonl:7")
        Traceback (most recent call last):
        cachelb.errors.TraceError: trace.jsonl:7: input_length must be a whole number >= 0, got -1
    """
    value = row.get(key)
    if type(value) is not int or value < 0:
        raise TraceError(f"{where}: {key} must be a whole number >= 0, got {_got(row, key)}")
    return value


def number(row: Mapping[str, Any], key: str, unit: str, where: str) -> float:
    """Return a point or span of time of a row: a finite number, 0 or more."""
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise TraceError(f"{where}: {key} must be {unit} >= 0, got {_got(row, key)}")
    return float(value)


def id_list(row: Mapping[str, Any], key: str, where: str) -> list[int]:
    """Return the block ids of a row, unsigned integers of 64 bits."""
    ids = row.get(key)
    # JSON's true and false are ints to Python.
    if not isinstance(ids, list) or not all(type(value) is int and 0 <= value <= _MAX_ID for value in ids):
        raise TraceError(f"{where}: {key} must be a list of integers from 0 to 2**64-1")
    return ids


def shown(value: object) -> str:
    """Return a value's ``repr`` for a message, cut to a readable length.

    Example:
        >>> shown([0])
        '[0]'
    """
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."


def _got(row: Mapping[str, Any], key: str) -> str:
    """Make the error for a row with an improper value."""
    return shown(row[key]) if key in row else "nothing"
