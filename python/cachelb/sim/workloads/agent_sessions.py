"""Recorded sessions of coding agents, with their sub-agents, as kv-cache-tester publishes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cachelb.arguments import MOST_TOKENS
from cachelb.arguments import whole as whole_number
from cachelb.errors import TraceError
from cachelb.sim.checks import MOST_BLOCKS
from cachelb.sim.expand import expand_ids
from cachelb.sim.textfile import id_list, json_object, number, read_lines, shown, whole
from cachelb.sim.workloads.arrivals import ArrivalProcess, Poisson
from cachelb.sim.workloads.workload import Workload, make

ID_TOKENS = 64
"""Tokens that one hash id stands for."""

_ID_BITS = 32
"""Ids of a session, or of a shared prefix, are apart from those of others by what stands above these bits."""


@dataclass(slots=True)
class _Columns:
    """The rows so far, of all sessions."""

    ids: list[int] = field(default_factory=list)
    each: list[int] = field(default_factory=list)
    prompt: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    think_s: list[float] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)
    session: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Prefix:
    """The shared prefix of sessions with tools and a system prompt of equal sizes."""

    number: int
    blocks: int


class _Reader:
    """Reads one file. If it is closed, requests wait for the answer before them."""

    def __init__(self, *, is_closed: bool) -> None:
        self.columns = _Columns()
        self._is_closed = is_closed
        self._scopes = 0
        self._prefixes: dict[tuple[int, int], _Prefix] = {}

    def session(self, row: Mapping[str, Any], where: str) -> None:
        """Read one line."""
        self._agent(row, row, self._scope(), (0.0, -1, 0.0), where)

    def _agent(
        self, agent: Mapping[str, Any], row: Mapping[str, Any], scope: int, begin: tuple[float, int, float], where: str
    ) -> tuple[int, float]:
        """Read the requests of a session, or of a sub-agent of it; return its last request and when that ended.

        `scope` is the path above its ids; `begin` is the time it begins, the request before (-1: none) and when that
        ended.
        """
        begin_s, parent, end_s = begin
        prefix, first = self._prefix(agent, where), None
        for entry in _entries(agent, where):
            at_s = begin_s + number(entry, "t", "seconds", where)
            if agent is row and "requests" in entry:
                last, last_end_s = self._agent(entry, row, scope, (at_s, parent, end_s), where)
                if last_end_s >= end_s:
                    parent, end_s = last, last_end_s
                continue
            ids = id_list(entry, "hash_ids", where)
            first = ids if first is None else first
            think_s = at_s - end_s
            if agent is row and entry.get("think_time") is not None:
                # Where sub-agents worked meanwhile, the agent waited for them.
                think_s = min(think_s, number(entry, "think_time", "seconds", where))
            shared = _shared(ids, first, prefix, scope, where)
            parent = self._request(entry, (at_s, think_s, parent), shared, row, where)
            end_s = at_s + _api_s(entry, where)
        return parent, end_s

    def _request(
        self,
        entry: Mapping[str, Any],
        when: tuple[float, float, int],
        ids: list[int],
        row: Mapping[str, Any],
        where: str,
    ) -> int:
        prompt_tokens, output_tokens = whole(entry, "in", where), whole(entry, "out", where)
        if not 1 <= prompt_tokens <= MOST_TOKENS or len(ids) != prompt_tokens // ID_TOKENS:
            raise TraceError(
                f"{where}: {len(ids)} hash_ids, but in {prompt_tokens} makes "
                f"{prompt_tokens // ID_TOKENS} full blocks of {ID_TOKENS} tokens"
            )
        at_s, think_s, parent = when
        columns = self.columns
        columns.ids += ids
        columns.each.append(len(ids))
        columns.prompt.append(prompt_tokens)
        columns.output.append(max(1, output_tokens))
        follows = self._is_closed and parent >= 0
        columns.parent.append(parent if follows else -1)
        columns.think_s.append(max(0.0, think_s) if follows else 0.0)
        columns.at_s.append(at_s)
        columns.session.append(str(row.get("id")))
        if len(columns.ids) > MOST_BLOCKS:
            raise TraceError(f"{where}: the prompts have more than {MOST_BLOCKS} blocks; read it with limit=")
        return len(columns.session) - 1

    def _scope(self) -> int:
        """Return what lies above the ids of the next session or prefix."""
        self._scopes += 1
        return self._scopes << _ID_BITS

    def _prefix(self, row: Mapping[str, Any], where: str) -> _Prefix:
        sizes = whole(row, "tool_tokens", where), whole(row, "system_tokens", where)
        known = self._prefixes.get(sizes)
        if known is None:
            known = self._prefixes[sizes] = _Prefix(self._scope(), sum(sizes) // ID_TOKENS)
        return known


def read_agent_sessions(
    path: str | Path,
    *,
    block_size: int = ID_TOKENS,
    loop: Literal["open", "closed"] = "closed",
    arrivals: ArrivalProcess | None = None,
    seed: int = 0,
    limit: int | None = None,
) -> Workload:
    """Read recorded sessions of coding agents, in the format of kv-cache-tester.

    Sessions whose tools and system prompts have equal sizes begin with the same blocks, and so do their sub-agents:
    ids in such files are of one session and do not show that.

    Args:
        path: JSON Lines, a session each, plain or compressed: ``tool_tokens``, ``system_tokens`` and ``requests`` with
            ``t`` (seconds from the session's start), ``in``, ``out``, ``hash_ids`` per full block of 64 tokens,
            ``api_time`` and ``think_time``. An entry with ``requests`` of its own is a sub-agent, whose ``t``
            are from its start.
        block_size: Tokens per block of the workload.
        loop: ``"closed"``: a request comes when the one before has its answer and the recorded pause has passed, and
            the one after a sub-agent when that is done. ``"open"``: requests come at the recorded times, however long
            answers take.
        arrivals: When sessions begin; one per minute, independent of each other, by default.
        seed: Seed of their arrivals.
        limit: Read so many sessions.

    Returns:
        The workload.

    Raises:
        TraceError: A row is malformed, or there is none.
        ValueError: ``block_size`` does not fit 64, or ``loop`` is neither.
        OSError: The file cannot be opened.

    Example:
        >>> import json, tempfile
        >>> from pathlib import Path
        >>> from cachelb.sim.workloads import read_agent_sessions
        >>> turn = {"t": 0.0, "in": 130, "out": 5, "hash_ids": [1, 2], "api_time": 2.0}
        >>> row = {"id": "a", "tool_tokens": 50, "system_tokens": 14, "requests": [turn]}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "sessions.jsonl")
        ...     _ = path.write_text(json.dumps(row) + chr(10) + json.dumps(row | {"id": "b"}))
        ...     read_agent_sessions(path).infinite_hits()  # one block of four is shared
        0.24615384615384617
    """
    whole_number("block_size", block_size, 1, MOST_TOKENS)
    whole_number("seed", seed, 0, (1 << 64) - 1)
    if loop not in ("open", "closed"):
        raise ValueError(f"loop must be 'open' or 'closed', got {loop!r}")
    if limit is not None:
        whole_number("limit", limit, 0, 1 << 32)
    reader = _Reader(is_closed=loop == "closed")
    begins: list[int] = []
    for where, line in islice(read_lines(path), limit):
        begins.append(len(reader.columns.session))
        reader.session(json_object(line, where), where)
    columns = reader.columns
    if not columns.session:
        raise TraceError(f"{path}: no requests; a line has one session with its requests")
    prompt = np.array(columns.prompt, dtype=np.int64)
    hashes, offsets = expand_ids(
        np.array(columns.ids, dtype=np.uint64),
        np.array(columns.each, dtype=np.int64),
        prompt,
        id_tokens=ID_TOKENS,
        block_size=block_size,
    )
    parents = np.array(columns.parent)
    process = arrivals or Poisson(1 / 60)
    starts = process.times(len(begins), np.random.default_rng(seed))
    counts = np.diff([*begins, len(parents)])
    arrival_s = np.repeat(starts, counts) + np.array(columns.at_s)
    return make(
        Path(path).name.split(".")[0],
        block_size=block_size,
        arrival_s=np.where(parents < 0, arrival_s, np.nan),
        parent=parents,
        think_s=columns.think_s,
        prompt_tokens=prompt,
        output_tokens=columns.output,
        hashes=hashes,
        offsets=offsets,
        session=columns.session,
        seed=seed,
    ).in_order()


def _entries(row: Mapping[str, Any], where: str) -> Sequence[Mapping[str, Any]]:
    """Return the requests of a session or sub-agent."""
    entries = row.get("requests")
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise TraceError(f"{where}: requests must be a list of objects, got {shown(entries)}")
    return entries


def _api_s(entry: Mapping[str, Any], where: str) -> float:
    """Return how long an answer took, 0 where that is not known."""
    return number(entry, "api_time", "seconds", where) if entry.get("api_time") is not None else 0.0


def _shared(ids: list[int], first: Sequence[int], prefix: _Prefix, scope: int, where: str) -> list[int]:
    """Return ids that are the same in every session that has the prefix, where this prompt begins with it."""
    common = 0
    for one, other in zip(ids[: prefix.blocks], first, strict=False):
        if one != other:
            break
        common += 1
    if any(not 0 <= each < 1 << _ID_BITS for each in ids):
        raise TraceError(f"{where}: hash_ids must be below 2**{_ID_BITS}")
    return [prefix.number | at for at in range(common)] + [scope | each for each in ids[common:]]
