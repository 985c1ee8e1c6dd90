"""Workload files of any format."""

from __future__ import annotations

from pathlib import Path

from cachelb.errors import TraceError
from cachelb_lab.sim.trace_files.textfile import json_object, read_lines
from cachelb_lab.sim.workloads.agent_sessions import ID_TOKENS, read_agent_sessions
from cachelb_lab.sim.workloads.files.captures import read_capture
from cachelb_lab.sim.workloads.files.traces import (
    BLOCK_SIZE,
    MOONCAKE_ID_TOKENS,
    check_reading,
    read_azure,
    read_mooncake,
    read_sessions,
)
from cachelb_lab.sim.workloads.generic import read_generic
from cachelb_lab.sim.workloads.workload import Workload

FORMATS = ("mooncake", "sharegpt", "sessions", "agents", "azure", "capture", "generic")
"""Formats of `read_workload`."""


def read_workload(
    path: str | Path, *, kind: str | None = None, block_size: int | None = None, limit: int | None = None
) -> Workload:
    """Read a workload or trace file.

    Args:
        path: ``.jsonl`` or ``.csv``, also compressed as ``.gz``, ``.xz`` or ``.zst``.
        kind: One of `FORMATS`; by default detected from the first row.
        block_size: Tokens per block of the workload; 16 by default, 64 for agents, or that of a generic file
            or a capture.
        limit: Read so many rows; of agents, sessions.

    Returns:
        The workload.

    Raises:
        TraceError: The file is malformed; the message names file and line.
        ValueError: There is no such format, or ``block_size`` does not fit the file.
        OSError: The file cannot be opened.

    Example:
        >>> import tempfile
        >>> from cachelb_lab.sim.workloads import build
        >>> workload = build("rag", seed=3, count=5)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     workload.save(Path(folder, "rag.jsonl.xz"))
        ...     read_workload(Path(folder, "rag.jsonl.xz")) == workload
        True
    """
    if kind is not None and kind not in FORMATS:
        raise ValueError(f"no format {kind!r}; use one of {', '.join(FORMATS)}")
    size = BLOCK_SIZE if block_size is None else block_size
    check_reading(size, limit)
    match kind or guess_format(path):
        case "mooncake" | "sharegpt" as found:
            full = found == "sharegpt"
            id_tokens = BLOCK_SIZE if full else MOONCAKE_ID_TOKENS
            return read_mooncake(path, block_size=size, id_tokens=id_tokens, full_blocks_only=full, limit=limit)
        case "sessions":
            workload = read_sessions(path, block_size=size)
            return workload if limit is None else workload.slice(0, limit)
        case "agents":
            return read_agent_sessions(path, block_size=block_size or ID_TOKENS, limit=limit)
        case "azure":
            return read_azure(path, block_size=size, limit=limit)
        case "capture":
            captured = read_capture(path, limit=limit).workload
            if block_size not in (None, captured.block_size):
                raise ValueError(
                    f"block_size is {block_size}, and the capture has blocks of {captured.block_size} tokens"
                )
            return captured
        case _:
            return read_generic(path, block_size=block_size, limit=limit)


def guess_format(path: str | Path) -> str:
    """Detect the format of a file by its first row: one of `FORMATS`."""
    path = Path(path)
    where, line = next(read_lines(path), (f"{path}:1", ""))
    if ".csv" in path.suffixes or "TIMESTAMP" in line.partition(",")[0]:
        return "azure"
    if not line:
        raise TraceError(f"{path}: no rows")
    row = json_object(line, where)
    if "tool_tokens" in row:
        return "agents"
    if "timestamp" in row:
        ids, tokens = row.get("hash_ids"), row.get("input_length")
        full = isinstance(ids, list) and isinstance(tokens, int) and len(ids) == tokens // BLOCK_SIZE
        return "sharegpt" if full and len(ids or ()) > 1 else "mooncake"
    if "offset_ms" in row:
        return "sessions"
    if row.get("kind") in ("capture", "decision"):
        return "capture"
    if "arrival_s" in row or "parent" in row:
        return "generic"
    raise TraceError(f"{where}: neither timestamp, offset_ms nor arrival_s; the formats are {', '.join(FORMATS)}")
