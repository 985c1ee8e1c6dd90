"""Recorded sessions of coding agents, with their sub-agents, as kv-cache-tester publishes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from cachelb.common.arguments import MOST_TOKENS
from cachelb.errors import TraceError
from cachelb_lab.sim.trace_files.textfile import id_list, json_object, number, read_lines, shown, whole
from cachelb_lab.sim.workloads.arrivals import ArrivalProcess, Poisson
from cachelb_lab.sim.workloads.files.traces import Turns, at_least_one, check_reading
from cachelb_lab.sim.workloads.workload import Workload

ID_TOKENS = 64
"""Tokens that one hash id stands for."""

_ID_BITS = 32
"""Ids of a session, or of a shared prefix, are apart from those of others by what stands above these bits."""


class _Prefix(NamedTuple):
    """The shared prefix of sessions with tools and a system prompt of equal sizes."""

    number: int
    blocks: int


class _Reader:
    """Reads one file. If it is closed, requests wait for the answer before them."""

    def __init__(self, *, is_closed: bool) -> None:
        self.turns = Turns(ID_TOKENS, "in")
        self._sessions = -1
        self._is_closed = is_closed
        self._scopes = 0
        self._prefixes: dict[tuple[int, int], _Prefix] = {}

    def session(self, row: Mapping[str, Any], where: str) -> None:
        """Read one line."""
        self._sessions += 1
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
        prompt_tokens, output_tokens = at_least_one(entry, "in", where), whole(entry, "out", where)
        if prompt_tokens > MOST_TOKENS:
            raise TraceError(f"{where}: in must be {MOST_TOKENS} at most, got {prompt_tokens}")
        at_s, think_s, parent = when
        follows = self._is_closed and parent >= 0
        times = (at_s, parent, max(0.0, think_s)) if follows else (at_s, -1, 0.0)
        session = self._sessions, str(row.get("id"))
        return self.turns.add(session, times, (prompt_tokens, max(1, output_tokens)), ids, where)

    def _scope(self) -> int:
        """Return what lies above the ids of the next session or prefix."""
        self._scopes += 1
        return self._scopes << _ID_BITS

    def _prefix(self, row: Mapping[str, Any], where: str) -> _Prefix:
        sizes = whole(row, "tool_tokens", where), whole(row, "system_tokens", where)
        if sizes not in self._prefixes:
            self._prefixes[sizes] = _Prefix(self._scope(), sum(sizes) // ID_TOKENS)
        return self._prefixes[sizes]


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
        >>> from cachelb_lab.sim.workloads import read_agent_sessions
        >>> turn = {"t": 0.0, "in": 130, "out": 5, "hash_ids": [1, 2], "api_time": 2.0}
        >>> row = {"id": "a", "tool_tokens": 50, "system_tokens": 14, "requests": [turn]}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "sessions.jsonl")
        ...     _ = path.write_text(json.dumps(row) + chr(10) + json.dumps(row | {"id": "b"}))
        ...     read_agent_sessions(path).infinite_hits()  # one block of four is shared
        0.24615384615384617
    """
    check_reading(block_size, limit, seed)
    if loop not in ("open", "closed"):
        raise ValueError(f"loop must be 'open' or 'closed', got {loop!r}")
    reader = _Reader(is_closed=loop == "closed")
    for where, line in islice(read_lines(path), limit):
        reader.session(json_object(line, where), where)
    name = Path(path).name.split(".")[0]
    return reader.turns.workload(name, arrivals or Poisson(1 / 60), block_size=block_size, seed=seed)


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
