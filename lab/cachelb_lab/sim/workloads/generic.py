"""Generic JSON Lines: one object per request, with times, lengths, and the content of its prompt.

``arrival_s``, or ``parent`` (row number of an earlier request, from 0) with ``think_s``;
``input_length`` and ``output_length``; what the prompt is: ``hash_ids`` (chained, one per started
or per full block) with ``block_size``, ``token_ids``, ``text``, or nothing of these for a prompt
that shares nothing; optionally ``output_hash_ids``, ``session_id``, ``boundaries``, where the
prompt's messages end in tokens, and ``abort_s``, seconds after the arrival at which the client
goes away. Unknown keys are ignored.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cachelb.errors import TraceError
from cachelb_lab.sim.trace_files.expand import expand_ids
from cachelb_lab.sim.trace_files.mixing import mix, mix_in_place
from cachelb_lab.sim.trace_files.textfile import id_list, json_object, number, read_lines, shown, whole
from cachelb_lab.sim.workloads.files.traces import BLOCK_SIZE, at_least_one, unshared
from cachelb_lab.sim.workloads.workload import Workload, make

CHARS_PER_TOKEN = 4
"""Characters of a ``text`` that stand for a token: no tokenizer is involved."""

_CONTENT_KEYS = ("hash_ids", "token_ids", "text")
_MAX_TOKENS = 2**32 - 1
_NONE = np.empty(0, dtype=np.uint64)

Hashes = npt.NDArray[np.uint64]


def read_generic(path: str | Path, *, block_size: int | None = None, limit: int | None = None) -> Workload:
    """Read generic JSON Lines, plain or compressed; rows out of order are sorted by arrival.

    The block size is by default that of the first row with ``block_size``, else 16; where rows have others, it must
    divide them or be a multiple.
    """
    reading = _Reading(block_size)
    for where, line in islice(read_lines(path), limit):
        reading.add(json_object(line, where), where)
    if not reading.rows:
        raise TraceError(f"{path}: no rows; a workload has one JSON object per line")
    return reading.workload(Path(path).name).in_order()


class _Reading:
    """Rows of columns."""

    def __init__(self, block_size: int | None) -> None:
        self.block_size = block_size
        self.name: str | None = None
        self.seed = 0
        self.rows: list[dict[str, Any]] = []

    def add(self, row: dict[str, Any], where: str) -> None:
        """Check a row and append it."""
        if not self.rows:
            self.name, self.seed = row.get("workload"), row.get("seed", 0)
            if type(self.seed) is not int:
                raise TraceError(f"{where}: seed must be a whole number, got {shown(self.seed)}")
        if self.block_size is None:
            self.block_size = at_least_one(row, "block_size", where) if "block_size" in row else BLOCK_SIZE
        size, made = self.block_size, self._time(row, where)
        output = made["output_tokens"] = _length(row, "output_length", where)
        given = [key for key in _CONTENT_KEYS if key in row]
        if len(given) > 1:
            raise TraceError(f"{where}: {' and '.join(given)} exclude each other; keep one")
        match given:
            case ["hash_ids"]:
                tokens, hashes = _from_ids(row, size, where)
            case ["token_ids"]:
                tokens, hashes = _from_tokens(row, size, where)
            case ["text"]:
                tokens, hashes = _from_text(row, size, where)
            case _:
                tokens = _length(row, "input_length", where)
                hashes, _ = unshared(np.array([tokens]), size, salt=len(self.rows) + 1)
        made |= {"prompt_tokens": tokens, "hashes": hashes, "output_hashes": _output(row, tokens, output, size, where)}
        made["session"] = None if (name := row.get("session_id")) is None else str(name)
        made["abort_s"] = number(row, "abort_s", "seconds", where) if "abort_s" in row else np.nan
        made["boundaries"] = _ends(row, tokens, where) if "boundaries" in row else None
        self.rows.append(made)

    def workload(self, name: str) -> Workload:
        """Put the columns together."""
        columns: dict[str, Any] = {key: [row[key] for row in self.rows] for key in self.rows[0]}
        for key, offsets in {"hashes": "offsets", "output_hashes": "output_offsets"}.items():
            columns[offsets] = np.cumsum([0, *map(len, columns[key])])
            columns[key] = np.concatenate(columns[key])
        session, ends = columns.pop("session"), columns.pop("boundaries")
        if any(row is not None for row in ends):
            ends = [row or [] for row in ends]
            columns |= {
                "boundaries": [end for row in ends for end in row],
                "boundary_offsets": np.cumsum([0, *map(len, ends)]),
            }
        if np.isnan(columns["abort_s"]).all():
            del columns["abort_s"]
        return make(
            name if self.name is None else str(self.name),
            block_size=self.block_size or BLOCK_SIZE,
            session=None if set(session) == {None} else ["" if each is None else each for each in session],
            seed=self.seed,
            **columns,
        )

    def _time(self, row: dict[str, Any], where: str) -> dict[str, Any]:
        """Return when a request arrives."""
        if "parent" not in row:
            return {"arrival_s": number(row, "arrival_s", "seconds", where), "parent": -1, "think_s": 0.0}
        if "arrival_s" in row:
            raise TraceError(f"{where}: arrival_s and parent exclude each other; keep one")
        parent = whole(row, "parent", where)
        if parent >= len(self.rows):
            raise TraceError(f"{where}: parent {parent} must be the number of an earlier row, from 0")
        return {"arrival_s": np.nan, "parent": parent, "think_s": number(row, "think_s", "seconds", where)}


def _ends(row: dict[str, Any], tokens: int, where: str) -> list[int]:
    """Return where the messages of a prompt end."""
    ends = id_list(row, "boundaries", where)
    if ends != sorted(ends) or (ends and ends[-1] > tokens):
        raise TraceError(f"{where}: boundaries must rise to at most the prompt's {tokens} tokens, got {shown(ends)}")
    return ends


def _from_ids(row: dict[str, Any], size: int, where: str) -> tuple[int, Hashes]:
    """Return length and hashes of a prompt that is given by ids."""
    tokens = _length(row, "input_length", where)
    ids, id_tokens = id_list(row, "hash_ids", where), at_least_one(row, "block_size", where)
    if len(ids) not in (tokens // id_tokens, -(-tokens // id_tokens)):
        raise TraceError(
            f"{where}: {len(ids)} hash_ids, but input_length {tokens} makes "
            f"{tokens // id_tokens} full blocks of {id_tokens} tokens"
        )
    hashes = _expanded(ids, tokens, id_tokens, size, where)
    if len(hashes) < tokens // size:
        raise TraceError(
            f"{where}: ids of full blocks of {id_tokens} tokens do not name the last blocks of "
            f"{size}; read it with {id_tokens} or a multiple"
        )
    return tokens, hashes


def _output(row: dict[str, Any], prompt: int, output: int, size: int, where: str) -> Hashes:
    """Return the hashes of the blocks that an answer fills, none where they are unknown."""
    if "output_hash_ids" not in row:
        return _NONE
    ids, id_tokens = id_list(row, "output_hash_ids", where), at_least_one(row, "block_size", where)
    filled = (prompt + output) // id_tokens - prompt // id_tokens
    if len(ids) > filled:
        raise TraceError(f"{where}: {len(ids)} output_hash_ids, but the answer fills {filled} blocks")
    # Where they begin inside a larger or smaller block is not known.
    return _expanded(ids, len(ids) * id_tokens, id_tokens, size, where) if id_tokens == size else _NONE


def _expanded(ids: list[int], tokens: int, id_tokens: int, size: int, where: str) -> Hashes:
    """Return the hashes of some ids."""
    each, tokens_each = np.array([len(ids)]), np.array([tokens])
    try:
        column = np.array(ids, dtype=np.uint64)
        return expand_ids(column, each, tokens_each, id_tokens=id_tokens, block_size=size)[0]
    except ValueError as error:
        raise TraceError(f"{where}: {error}") from error


def _from_tokens(row: dict[str, Any], size: int, where: str) -> tuple[int, Hashes]:
    """Return length and hashes of a prompt that is given by tokens."""
    tokens = id_list(row, "token_ids", where)
    if not tokens:
        raise TraceError(f"{where}: token_ids must not be empty")
    if row.get("input_length", len(tokens)) != len(tokens):
        raise TraceError(f"{where}: {len(tokens)} token_ids, but input_length {shown(row['input_length'])}")
    return len(tokens), chained(np.array(tokens, dtype=np.uint64), size)


def _from_text(row: dict[str, Any], size: int, where: str) -> tuple[int, Hashes]:
    """Return length and hashes of a prompt that is given by text."""
    text = row["text"]
    if not isinstance(text, str) or not text:
        kind = "nothing" if text == "" else type(text).__name__  # the text itself stays private
        raise TraceError(f"{where}: text must be a string that is not empty, got {kind}")
    tokens = -(-len(text) // CHARS_PER_TOKEN)
    if "input_length" in row and _length(row, "input_length", where) != tokens:
        raise TraceError(
            f"{where}: text of {len(text)} characters counts as {tokens} tokens, but input_length "
            f"{shown(row['input_length'])}; leave it out, or give token_ids"
        )
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32).astype(np.uint64)
    # A last token of fewer characters may fill a block; it ends where the text does.
    full = tokens // size * size * CHARS_PER_TOKEN
    padded = np.concatenate([codes, np.zeros(max(0, full - len(codes)), dtype=np.uint64)])
    return tokens, chained(padded, size * CHARS_PER_TOKEN)


def chained(units: npt.NDArray[np.uint64], block_size: int) -> npt.NDArray[np.uint64]:
    """Return chained hashes of the full blocks of a sequence.

    A sum over all units so far, each mixed with its place, stands for the prefix: that can be
    computed for all blocks at once.

    Example:
        >>> one, other = (chained(np.array(units, dtype=np.uint64), 2) for units in ([5, 6, 7, 8, 9], [5, 6, 8, 7]))
        >>> (one == other).tolist()
        [True, False]
    """
    sums = mix(np.arange(len(units), dtype=np.uint64))
    sums ^= units
    mix_in_place(sums)
    np.cumsum(sums, out=sums)
    return mix(sums[block_size - 1 :: block_size])


def _length(row: dict[str, Any], key: str, where: str) -> int:
    """Return the length of a prompt or an answer."""
    value = at_least_one(row, key, where)
    if value > _MAX_TOKENS:
        raise TraceError(f"{where}: {key} must be below 2**32, got {value}")
    return value
