"""Workloads from published traces: Mooncake, ShareGPT lengths, agent sessions, Azure.

The format of Mooncake has a request per row: ``timestamp`` (milliseconds), ``input_length`` and ``output_length``
(tokens) and ``hash_ids``, one id for every started block of ``id_tokens`` tokens. Ids are chained: an equal id means an
equal whole prefix, so rows show shared prefixes without any text.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cachelb.common.arguments import MOST_TOKENS
from cachelb.common.arguments import whole as whole_number
from cachelb.errors import TraceError
from cachelb_lab.sim.checks import MOST_BLOCKS, MOST_REQUESTS
from cachelb_lab.sim.trace_files.expand import expand_ids
from cachelb_lab.sim.trace_files.mixing import mix
from cachelb_lab.sim.trace_files.textfile import id_list, json_object, number, read_lines, shown, whole
from cachelb_lab.sim.workloads.arrivals import ArrivalProcess, Given, Poisson
from cachelb_lab.sim.workloads.workload import Workload, make

MOONCAKE_ID_TOKENS = 512
"""Tokens one hash id of a Mooncake trace stands for."""


BLOCK_SIZE = 16
"""Tokens per block, as engines have by default."""

_MOST_DIGITS = 20
_AZURE_KEYS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_SECOND_CHARS = len("2023-11-16 18:17:03")


def read_mooncake(
    path: str | Path,
    *,
    block_size: int = BLOCK_SIZE,
    id_tokens: int = MOONCAKE_ID_TOKENS,
    full_blocks_only: bool = False,
    limit: int | None = None,
) -> Workload:
    """Read a Mooncake trace.

    Args:
        path: JSON Lines, plain or compressed.
        block_size: Tokens per block of the workload.
        id_tokens: Tokens one hash id stands for; 16 for ShareGPT lengths.
        full_blocks_only: Whether rows have ids for full blocks only, as ShareGPT lengths do.
        limit: Read so many rows.

    Returns:
        The workload.

    Raises:
        TraceError: A row is malformed, or there is none.
        ValueError: ``block_size`` does not fit ``id_tokens``.
        OSError: The file cannot be opened.

    Example:
        >>> import json, tempfile
        >>> from pathlib import Path
        >>> from cachelb_lab.sim.workloads import read_mooncake
        >>> row = {"timestamp": 0, "input_length": 900, "output_length": 5, "hash_ids": [0, 1]}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "trace.jsonl")
        ...     _ = path.write_text(json.dumps(row))
        ...     read_mooncake(path).prompt_tokens.tolist()
        [900]
    """
    check_reading(block_size, limit)
    whole_number("id_tokens", id_tokens, 1)
    rows = Turns(id_tokens, "input_length", has_started=not full_blocks_only)
    for where, line in islice(read_lines(path), limit):
        row = json_object(line, where)
        at_s = number(row, "timestamp", "milliseconds", where) / 1000
        session = "" if row.get("session_id") is None else str(row["session_id"])
        rows.add((0, session), (at_s, -1, 0.0), _lengths(row, where), id_list(row, "hash_ids", where), where)
    return rows.workload(path, Given(np.zeros(1)), block_size=block_size)


def read_sessions(
    path: str | Path,
    *,
    block_size: int = BLOCK_SIZE,
    id_tokens: int = BLOCK_SIZE,
    arrivals: ArrivalProcess | None = None,
    seed: int = 0,
) -> Workload:
    """Read recorded sessions, to be replayed turn after turn.

    A turn arrives when the turn before has finished and the recorded distance of the two has
    passed. When sessions begin is not in such files.

    Args:
        path: JSON Lines with ``session_id``, ``turn``, ``offset_ms``, ``input_length``,
            ``output_length`` and ``hash_ids`` of full blocks; turns of a session in order.
        block_size: Tokens per block of the workload.
        id_tokens: Tokens one hash id stands for.
        arrivals: When sessions begin; one per second, independent of each other, by default.
        seed: Seed of their arrivals.

    Returns:
        The workload.

    Raises:
        TraceError: A row is malformed, or there is none.
        ValueError: ``block_size`` does not fit ``id_tokens``.
        OSError: The file cannot be opened.

    Example:
        >>> import json, tempfile
        >>> from pathlib import Path
        >>> from cachelb_lab.sim.workloads import read_sessions
        >>> row = {"session_id": "a", "turn": 0, "offset_ms": 0, "input_length": 40, "output_length": 5}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "sessions.jsonl")
        ...     _ = path.write_text(json.dumps(row | {"hash_ids": [0, 1]}))
        ...     read_sessions(path).prompt_tokens.tolist()
        [40]
    """
    check_reading(block_size, None, seed)
    whole_number("id_tokens", id_tokens, 1)
    turns = Turns(id_tokens, "input_length")
    begins: dict[str, int] = {}
    last: dict[str, tuple[int, float]] = {}
    for where, line in read_lines(path):
        row = json_object(line, where)
        name = str(row.get("session_id"))
        at_s = number(row, "offset_ms", "milliseconds", where) / 1000
        parent, before_s = last.get(name, (-1, at_s))
        if at_s < before_s:
            raise TraceError(f"{where}: offset_ms {shown(row['offset_ms'])} is before the turn that it follows")
        session = begins.setdefault(name, len(begins)), name
        when, ids = (0.0, parent, at_s - before_s), id_list(row, "hash_ids", where)
        last[name] = turns.add(session, when, _lengths(row, where), ids, where), at_s
    return turns.workload(path, arrivals or Poisson(1.0), block_size=block_size, seed=seed)


class Turns:
    """The rows of a trace so far; their prompts have an id per full block of so many tokens, or per started one."""

    def __init__(self, id_tokens: int, length: str, *, has_started: bool = False) -> None:
        self._id_tokens, self._length = id_tokens, length  # the latter as in messages
        self._has_started = has_started
        self._ids: list[int] = []
        self._each: list[int] = []
        self._lengths: list[tuple[int, int]] = []
        self._times: list[tuple[float, int, float]] = []
        self._sessions: list[tuple[int, str]] = []

    def add(
        self,
        session: tuple[int, str],
        when: tuple[float, int, float],
        lengths: tuple[int, int],
        ids: list[int],
        where: str,
    ) -> int:
        """Append a request and return its row.

        `session` is its number and its name, `when` the seconds from its begin, the row that the request follows or
        -1, and the pause after that; `lengths` are those of prompt and answer.
        """
        blocks = (lengths[0] + (self._id_tokens - 1) * self._has_started) // self._id_tokens
        if len(ids) != blocks:
            raise TraceError(
                f"{where}: {len(ids)} hash_ids, but {self._length} {lengths[0]} makes {blocks} "
                f"{'' if self._has_started else 'full '}blocks of {self._id_tokens} tokens"
            )
        self._ids += ids
        self._each.append(blocks)
        self._lengths.append(lengths)
        self._times.append(when)
        self._sessions.append(session)
        if len(self._ids) > MOST_BLOCKS or len(self._each) > MOST_REQUESTS:
            raise TraceError(
                f"{where}: more than {MOST_REQUESTS} requests or {MOST_BLOCKS} blocks; read it with limit="
            )
        return len(self._sessions) - 1

    def workload(self, path: str | Path, arrivals: ArrivalProcess, *, block_size: int, seed: int = 0) -> Workload:
        """Let the sessions begin, and put the columns together."""
        if not self._each:
            raise TraceError(f"{path}: no rows; a trace has one JSON object per line")
        prompt, output = np.array(self._lengths, dtype=np.int64).T
        at_s, parent, think_s = map(np.array, zip(*self._times, strict=True))
        ids, each = np.array(self._ids, dtype=np.uint64), np.array(self._each, dtype=np.int64)
        hashes, offsets = expand_ids(ids, each, prompt, id_tokens=self._id_tokens, block_size=block_size)
        number = np.array([number for number, _ in self._sessions])
        begin_s = arrivals.times(int(number.max()) + 1, np.random.default_rng(seed))
        sessions = [name for _, name in self._sessions]
        return make(
            Path(path).name,
            block_size=block_size,
            arrival_s=np.where(parent < 0, begin_s[number] + at_s, np.nan),
            parent=parent,
            think_s=think_s,
            prompt_tokens=prompt,
            output_tokens=output,
            hashes=hashes,
            offsets=offsets,
            session=sessions if any(sessions) else None,
            seed=seed,
        ).in_order()


def read_azure(path: str | Path, *, block_size: int = BLOCK_SIZE, limit: int | None = None) -> Workload:
    r"""Read an Azure trace: arrivals and lengths. It has no content, so prompts share nothing.

    Args:
        path: CSV with ``TIMESTAMP``, ``ContextTokens`` and ``GeneratedTokens``, plain or compressed.
        block_size: Tokens per block of the workload.
        limit: Read so many rows.

    Returns:
        The workload, from its first arrival at 0. `Given` lets a generator use its arrivals.

    Raises:
        TraceError: The header or a row is malformed, or there is no row.
        OSError: The file cannot be opened.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from cachelb_lab.sim.workloads import read_azure
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "trace.csv")
        ...     rows = ["TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:17:03.9799600,4808,10"]
        ...     _ = path.write_text("\n".join(rows))
        ...     read_azure(path).prompt_tokens.tolist()
        [4808]
    """
    check_reading(block_size, limit)
    lines = read_lines(path)
    where, header = next(lines, (f"{path}:1", ""))
    names = header.strip().lstrip("\ufeff").split(",")
    if missing := [key for key in _AZURE_KEYS if key not in names]:
        needed = f"a CSV trace has {', '.join(_AZURE_KEYS)}"
        raise TraceError(f"{where}: the header lacks {', '.join(missing)}: {needed}, got {shown(header.strip())}")
    at_us: list[int] = []
    tokens: list[list[int]] = [[], []]
    for where, line in islice(lines, limit):
        values = line.strip().split(",")
        if len(values) != len(names):
            raise TraceError(f"{where}: expected {len(names)} values, got {len(values)}")
        row = dict(zip(names, values, strict=True))
        at_us.append(_timestamp_us(row[_AZURE_KEYS[0]], where))
        for column, key in zip(tokens, _AZURE_KEYS[1:], strict=True):
            written = row[key]
            if not written.isdecimal() or len(written) > _MOST_DIGITS or not 1 <= int(written) <= MOST_TOKENS:
                raise TraceError(f"{where}: {key} must be a whole number from 1 to {MOST_TOKENS}, got {shown(written)}")
            column.append(int(written))
    if not at_us:
        raise TraceError(f"{path}: no rows below the header")
    prompt_tokens = np.array(tokens[0], dtype=np.int64)
    hashes, offsets = unshared(prompt_tokens, block_size, salt=0)
    return make(
        Path(path).name,
        block_size=block_size,
        arrival_s=(np.array(at_us) - min(at_us)) / 1e6,
        prompt_tokens=prompt_tokens,
        output_tokens=tokens[1],
        hashes=hashes,
        offsets=offsets,
    ).in_order()


def unshared(
    prompt_tokens: npt.NDArray[np.int64], block_size: int, *, salt: int
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Return hashes and offsets for prompts that share nothing; another salt gives other hashes.

    Example:
        >>> hashes, offsets = unshared(np.array([40, 15]), 16, salt=0)
        >>> len(set(hashes.tolist())), offsets.tolist()
        (2, [0, 2, 2])
    """
    offsets = np.concatenate([[0], np.cumsum(prompt_tokens // block_size)])
    if offsets[-1] > MOST_BLOCKS:
        raise TraceError(f"the prompts have {offsets[-1]} blocks, {MOST_BLOCKS} at most; read it with limit=")
    start = mix(np.array([salt], dtype=np.uint64))
    return mix(np.arange(int(offsets[-1]), dtype=np.uint64) + start), offsets.astype(np.uint64)


def check_reading(block_size: int, limit: int | None, seed: int = 0) -> None:
    """Refuse arguments of a reader that are out of range."""
    whole_number("block_size", block_size, 1, MOST_TOKENS)
    whole_number("limit", 0 if limit is None else limit, 0, sys.maxsize)
    whole_number("seed", seed, 0, (1 << 64) - 1)


def _lengths(row: Mapping[str, Any], where: str) -> tuple[int, int]:
    return at_least_one(row, "input_length", where), at_least_one(row, "output_length", where)


def at_least_one(row: Mapping[str, Any], key: str, where: str) -> int:
    """Return a length that a run can use: a whole number, 1 or more."""
    value = whole(row, key, where)
    if not value:
        raise TraceError(f"{where}: {key} must be at least 1, got 0")
    return value


def _timestamp_us(text: str, where: str) -> int:
    """Return a local date and time with any number of decimals as microseconds."""
    try:
        second = datetime.fromisoformat(text[:_SECOND_CHARS]).replace(tzinfo=UTC)
        decimals = text[_SECOND_CHARS:].removesuffix("+00:00")  # as in the files of 2024
        if decimals and not (decimals.startswith(".") and decimals[1:].isdecimal()):
            raise ValueError(decimals)  # noqa: TRY301 - one message for all that can be wrong
    except ValueError:
        raise TraceError(f"{where}: TIMESTAMP must be like 2023-11-16 18:17:03.9799600, got {shown(text)}") from None
    return int(second.timestamp()) * 1_000_000 + int((decimals[1:] + "000000")[:6])
