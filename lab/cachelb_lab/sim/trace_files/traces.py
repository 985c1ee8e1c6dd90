"""Request traces: one row per request, streamed from plain or compressed JSON Lines.

The format is Mooncake's: ``timestamp`` (milliseconds), ``input_length`` and ``output_length``
(tokens) and ``hash_ids``, one id for every started block of ``id_tokens`` tokens. Ids are chained:
an equal id means an equal whole prefix, so rows show shared prefixes without any text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cachelb.common.arguments import whole as whole_number
from cachelb.errors import TraceError
from cachelb_lab.sim.trace_files.textfile import id_list, json_object, number, read_lines, whole

MOONCAKE_ID_TOKENS = 512
"""Tokens one hash id of a Mooncake trace stands for."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a trace."""

    arrival_s: float  # from the start of the trace
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...]  # one chained id per started block of the trace's ``id_tokens`` tokens
    session: str | None = None


def read_trace(
    path: str | Path, *, id_tokens: int = MOONCAKE_ID_TOKENS, full_blocks_only: bool = False
) -> Iterator[Request]:
    """Stream the requests of a trace file, in file order, one per line; unknown keys are ignored.

    The file is ``.jsonl``, or the same compressed as ``.gz``, ``.xz`` or ``.zst``. Rows have an id for a partial block
    at the end too unless ``full_blocks_only``.
    """
    whole_number("id_tokens", id_tokens, 1)
    for where, line in read_lines(path):
        yield _parse_row(line, where, id_tokens, full_blocks_only)


def _parse_row(line: str, where: str, id_tokens: int, full_blocks_only: bool) -> Request:  # noqa: FBT001
    """Check one line and turn it into a request."""
    row = json_object(line, where)
    prompt_tokens = whole(row, "input_length", where)
    hash_ids = id_list(row, "hash_ids", where)
    expected = prompt_tokens // id_tokens if full_blocks_only else math.ceil(prompt_tokens / id_tokens)
    if len(hash_ids) != expected:
        kind = "full blocks" if full_blocks_only else "blocks"
        raise TraceError(
            f"{where}: {len(hash_ids)} hash_ids, but input_length {prompt_tokens} makes "
            f"{expected} {kind} of {id_tokens} tokens"
        )
    session = row.get("session_id")
    return Request(
        arrival_s=number(row, "timestamp", "milliseconds", where) / 1000,
        prompt_tokens=prompt_tokens,
        output_tokens=whole(row, "output_length", where),
        hash_ids=tuple(hash_ids),
        session=None if session is None else str(session),
    )
