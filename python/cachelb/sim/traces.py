"""Request traces: one row per request, streamed from plain or compressed JSON Lines.

The format is Mooncake's: ``timestamp`` (milliseconds), ``input_length`` and ``output_length``
(tokens) and ``hash_ids``, one id for every started block of ``id_tokens`` tokens. Ids are chained:
an equal id means an equal whole prefix, so a row says what is shared without any text.
"""

from __future__ import annotations

import gzip
import json
import lzma
import math
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from cachelb.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterator

MOONCAKE_ID_TOKENS = 512
"""Tokens one hash id of a Mooncake trace stands for."""

_MAX_ID = 2**64 - 1
_SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a trace.

    Attributes:
        arrival_s: Arrival in seconds from the start of the trace.
        prompt_tokens: Length of the prompt.
        output_tokens: Length of the answer.
        hash_ids: One chained id per started block of the trace's ``id_tokens`` tokens.
        session: Session id, where the trace names one.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...]
    session: str | None = None


def read_trace(path: str | Path, *, id_tokens: int = MOONCAKE_ID_TOKENS) -> Iterator[Request]:
    """Stream the requests of a trace file, in file order.

    Args:
        path: ``.jsonl``, or the same compressed as ``.gz``, ``.xz`` or ``.zst``.
        id_tokens: Tokens one hash id stands for.

    Yields:
        One request per line; blank lines are passed over, unknown keys are ignored.

    Raises:
        ValueError: ``id_tokens`` is below 1.
        TraceError: A row is malformed (the message names file, line, value and what was
            expected), or the file is not what its suffix says.
        OSError: The file cannot be opened.
        ModuleNotFoundError: A ``.zst`` file without the extra ``cachelb[traces]``.

    Example:
        >>> import tempfile
        >>> row = '{"timestamp": 1500, "input_length": 600, "output_length": 8, "hash_ids": [0, 7]}'
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder, "trace.jsonl")
        ...     _ = file.write_text(row)
        ...     list(read_trace(file))
        [Request(arrival_s=1.5, prompt_tokens=600, output_tokens=8, hash_ids=(0, 7), session=None)]
    """
    if id_tokens < 1:
        raise ValueError(f"id_tokens must be at least 1, got {id_tokens}")
    path = Path(path)
    stream, damage = _open_text(path)
    number = 0
    try:
        with stream as lines:
            for number, line in enumerate(lines, start=1):
                if not line.isspace():
                    yield _parse_row(line, f"{path}:{number}", id_tokens)
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: not UTF-8 text after line {number} ({error.reason}); is it compressed?") from error
    except damage as error:
        raise TraceError(
            f"{path}: damaged, or not compressed as its name says, after line {number}: {error}"
        ) from error


def _open_text(path: Path) -> tuple[IO[str], tuple[type[Exception], ...]]:
    """Open a trace by its suffix; also return what a damaged file of that kind raises."""
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
    try:
        import zstandard
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"reading {path} needs zstandard: pip install 'cachelb[traces]'", name="zstandard"
        ) from error
    return zstandard.open(path, "rt", encoding="utf-8"), (zstandard.ZstdError,)


def _parse_row(line: str, where: str, id_tokens: int) -> Request:
    """Check one line and turn it into a request."""
    try:
        row = json.loads(line)
    except ValueError as error:
        raise TraceError(f"{where}: not JSON: {error}") from error
    if not isinstance(row, dict):
        raise TraceError(f"{where}: expected a JSON object, got {_shown(row)}")
    prompt_tokens = _count(row, "input_length", where)
    hash_ids = row.get("hash_ids")
    if not isinstance(hash_ids, list) or not all(_is_id(value) for value in hash_ids):
        raise TraceError(f"{where}: hash_ids must be a list of integers from 0 to 2**64-1")
    expected = math.ceil(prompt_tokens / id_tokens)
    if len(hash_ids) != expected:
        raise TraceError(
            f"{where}: {len(hash_ids)} hash_ids, but input_length {prompt_tokens} makes "
            f"{expected} blocks of {id_tokens} tokens"
        )
    session = row.get("session_id")
    return Request(
        arrival_s=_milliseconds(row, where) / 1000,
        prompt_tokens=prompt_tokens,
        output_tokens=_count(row, "output_length", where),
        hash_ids=tuple(hash_ids),
        session=None if session is None else str(session),
    )


def _count(row: dict[str, Any], key: str, where: str) -> int:
    """Return a token count of a row."""
    value = row.get(key)
    if type(value) is not int or value < 0:
        got = _shown(value) if key in row else "nothing"
        raise TraceError(f"{where}: {key} must be a whole number >= 0, got {got}")
    return value


def _milliseconds(row: dict[str, Any], where: str) -> float:
    """Return the timestamp of a row."""
    value = row.get("timestamp")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        got = _shown(value) if "timestamp" in row else "nothing"
        raise TraceError(f"{where}: timestamp must be milliseconds >= 0, got {got}")
    return float(value)


def _is_id(value: object) -> bool:
    """Tell whether a value is a hash id; JSON true and false are not."""
    return type(value) is int and 0 <= value <= _MAX_ID


def _shown(value: object) -> str:
    """Return a value for a message, cut to a readable length."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."
