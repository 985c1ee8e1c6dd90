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


def read_generic(path: str | Path, *, block_size: int | None = None, limit: int | None = None) -> Workload:
    """Read generic JSON Lines, plain or compressed; rows out of order are sorted by arrival.

    The block size is by default that of the first row with ``block_size``, else 16; where rows have others, it must
    divide them or be a multiple.
    """
    reading = _Reading(block_size)
    for where, line in islice(read_lines(path), limit):
        reading.add(json_object(line, where), where)
    if not reading.arrival_s:
        raise TraceError(f"{path}: no rows; a workload has one JSON object per line")
    return reading.workload(Path(path).name).in_order()


class _Reading:
    """Columns that grow row by row."""

    def __init__(self, block_size: int | None) -> None:
        self.block_size = block_size
        self.name: str | None = None
        self.seed = 0
        self.arrival_s: list[float] = []
        self.parent: list[int] = []
        self.think_s: list[float] = []
        self.prompt_tokens: list[int] = []
        self.output_tokens: list[int] = []
        self.hashes: list[npt.NDArray[np.uint64]] = []
        self.output_hashes: list[npt.NDArray[np.uint64]] = []
        self.session: list[str | None] = []
        self.abort_s: list[float] = []
        self.boundaries: list[list[int] | None] = []

    def add(self, row: dict[str, Any], where: str) -> None:
        """Check a row and append it."""
        if not self.arrival_s:
            self.name, self.seed = row.get("workload"), row.get("seed", 0)
            if type(self.seed) is not int:
                raise TraceError(f"{where}: seed must be a whole number, got {shown(self.seed)}")
        if self.block_size is None:
            self.block_size = at_least_one(row, "block_size", where) if "block_size" in row else BLOCK_SIZE
        self._add_time(row, where)
        self.output_tokens.append(_length(row, "output_length", where))
        given = [key for key in _CONTENT_KEYS if key in row]
        if len(given) > 1:
            raise TraceError(f"{where}: {' and '.join(given)} exclude each other; keep one")
        match given:
            case ["hash_ids"]:
                self.prompt_tokens.append(_length(row, "input_length", where))
                hashes = self._from_ids(row, where)
            case ["token_ids"]:
                hashes = self._from_tokens(row, where)
            case ["text"]:
                hashes = self._from_text(row, where)
            case _:
                self.prompt_tokens.append(_length(row, "input_length", where))
                hashes, _ = unshared(np.array(self.prompt_tokens[-1:]), self.block_size, salt=len(self.hashes) + 1)
        self.hashes.append(hashes)
        self.output_hashes.append(self._output(row, where) if "output_hash_ids" in row else _NONE)
        session = row.get("session_id")
        self.session.append(None if session is None else str(session))
        self.abort_s.append(number(row, "abort_s", "seconds", where) if "abort_s" in row else np.nan)
        self.boundaries.append(self._ends(row, where) if "boundaries" in row else None)

    def workload(self, name: str) -> Workload:
        """Put the columns together."""
        named = any(session is not None for session in self.session)
        ends = [row or [] for row in self.boundaries]
        bounded = any(row is not None for row in self.boundaries)
        return make(
            name if self.name is None else str(self.name),
            block_size=self.block_size or BLOCK_SIZE,
            arrival_s=self.arrival_s,
            parent=self.parent,
            think_s=self.think_s,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            hashes=np.concatenate(self.hashes),
            offsets=np.cumsum([0, *map(len, self.hashes)]),
            output_hashes=np.concatenate(self.output_hashes),
            output_offsets=np.cumsum([0, *map(len, self.output_hashes)]),
            session=[session or "" for session in self.session] if named else None,
            abort_s=None if np.isnan(self.abort_s).all() else self.abort_s,
            boundaries=np.array([end for row in ends for end in row], dtype=np.uint32) if bounded else None,
            boundary_offsets=np.cumsum([0, *map(len, ends)]) if bounded else None,
            seed=self.seed,
        )

    def _ends(self, row: dict[str, Any], where: str) -> list[int]:
        """Return where the messages of a prompt end."""
        ends, tokens = id_list(row, "boundaries", where), self.prompt_tokens[-1]
        if ends != sorted(ends) or (ends and ends[-1] > tokens):
            raise TraceError(
                f"{where}: boundaries must rise to at most the prompt's {tokens} tokens, got {shown(ends)}"
            )
        return ends

    def _add_time(self, row: dict[str, Any], where: str) -> None:
        """Append when a request arrives."""
        if "parent" not in row:
            self.arrival_s.append(number(row, "arrival_s", "seconds", where))
            self.parent.append(-1)
            self.think_s.append(0.0)
            return
        if "arrival_s" in row:
            raise TraceError(f"{where}: arrival_s and parent exclude each other; keep one")
        parent = whole(row, "parent", where)
        if parent >= len(self.parent):
            raise TraceError(f"{where}: parent {parent} must be the number of an earlier row, from 0")
        self.think_s.append(number(row, "think_s", "seconds", where))
        self.arrival_s.append(np.nan)
        self.parent.append(parent)

    def _from_ids(self, row: dict[str, Any], where: str) -> npt.NDArray[np.uint64]:
        """Return the hashes of a prompt that is given by ids."""
        ids, tokens = id_list(row, "hash_ids", where), self.prompt_tokens[-1]
        id_tokens = at_least_one(row, "block_size", where)
        if len(ids) not in (tokens // id_tokens, -(-tokens // id_tokens)):
            raise TraceError(
                f"{where}: {len(ids)} hash_ids, but input_length {tokens} makes "
                f"{tokens // id_tokens} full blocks of {id_tokens} tokens"
            )
        hashes = self._expanded(ids, tokens, id_tokens, where)
        if len(hashes) < tokens // (self.block_size or 1):
            raise TraceError(
                f"{where}: ids of full blocks of {id_tokens} tokens do not name the last blocks of "
                f"{self.block_size}; read it with {id_tokens} or a multiple"
            )
        return hashes

    def _output(self, row: dict[str, Any], where: str) -> npt.NDArray[np.uint64]:
        """Return the hashes of the blocks that an answer fills."""
        ids = id_list(row, "output_hash_ids", where)
        id_tokens = at_least_one(row, "block_size", where)
        prompt, output = self.prompt_tokens[-1], self.output_tokens[-1]
        filled = (prompt + output) // id_tokens - prompt // id_tokens
        if len(ids) > filled:
            raise TraceError(f"{where}: {len(ids)} output_hash_ids, but the answer fills {filled} blocks")
        if id_tokens != self.block_size:
            return _NONE  # where they begin inside a larger or smaller block is not known
        return self._expanded(ids, len(ids) * id_tokens, id_tokens, where)

    def _expanded(self, ids: list[int], tokens: int, id_tokens: int, where: str) -> npt.NDArray[np.uint64]:
        """Return the hashes of some ids."""
        column = np.array(ids, dtype=np.uint64)
        size = self.block_size or BLOCK_SIZE
        try:
            each, tokens_each = np.array([len(ids)]), np.array([tokens])
            hashes, _ = expand_ids(column, each, tokens_each, id_tokens=id_tokens, block_size=size)
        except ValueError as error:
            raise TraceError(f"{where}: {error}") from error
        return hashes

    def _from_tokens(self, row: dict[str, Any], where: str) -> npt.NDArray[np.uint64]:
        """Return the hashes of a prompt that is given by tokens."""
        tokens = id_list(row, "token_ids", where)
        if not tokens:
            raise TraceError(f"{where}: token_ids must not be empty")
        if row.get("input_length", len(tokens)) != len(tokens):
            raise TraceError(f"{where}: {len(tokens)} token_ids, but input_length {shown(row['input_length'])}")
        self.prompt_tokens.append(len(tokens))
        return chained(np.array(tokens, dtype=np.uint64), self.block_size or BLOCK_SIZE)

    def _from_text(self, row: dict[str, Any], where: str) -> npt.NDArray[np.uint64]:
        """Return the hashes of a prompt that is given by text."""
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
        self.prompt_tokens.append(tokens)
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32).astype(np.uint64)
        size = (self.block_size or BLOCK_SIZE) * CHARS_PER_TOKEN
        # A last token of fewer characters may fill a block; it ends where the text does.
        full = -(-len(text) // CHARS_PER_TOKEN) // (self.block_size or BLOCK_SIZE)
        padded = np.concatenate([codes, np.zeros(max(0, full * size - len(codes)), dtype=np.uint64)])
        return chained(padded, size)


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
