"""Workloads from captures of live traffic (`cachelb.records.Capture`)."""

from __future__ import annotations

import base64
import binascii
from collections import Counter, defaultdict, deque
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cachelb.common.arguments import MOST_TOKENS, whole
from cachelb.errors import TraceError
from cachelb.records import RecordFiles
from cachelb.records.schema import SchemaError
from cachelb_lab.sim.checks import MOST_BLOCKS, MOST_REQUESTS
from cachelb_lab.sim.trace_files.mixing import mix
from cachelb_lab.sim.workloads.workload import Workload, make

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from cachelb.types import DecisionRecord

_MOST_SCALE = 8.0
_HASH_BYTES = 8
_SHOWN = 40
_TURNS = 8  # of a session that the next prompt may continue
_COMPLETED = "completed"


@dataclass(frozen=True, slots=True)
class CapturedWorker:
    """A worker at the end of a capture.

    Attributes:
        key: Its name.
        gpu: Its device, None if it is unknown.
        kv_tokens: Tokens that its cache holds, likewise.

    Example:
        >>> from cachelb_lab.sim.workloads import CapturedWorker
        >>> CapturedWorker("http://gpu0:8000", "h100-80", 400_000).kv_tokens
        400000
    """

    key: str
    gpu: str | None
    kv_tokens: int | None


@dataclass(frozen=True, slots=True)
class CapturedTraffic:
    """The requests of a capture.

    Attributes:
        workload: Those that completed, with the lengths that engines counted, as far as they did.
        records: Records of all requests, of the halves of pairs both.
        policy: Name of the policy of the router, None if the file does not have it.
        workers: Workers and ranks of them.
        ended: Reason of the end, None for a file that was cut off.
        missing: Requests that were left out of the file.
        files: The file, with the damaged lines.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from cachelb import Router
        >>> from cachelb.records import Capture
        >>> from cachelb_lab.sim.workloads import read_capture
        >>> with tempfile.TemporaryDirectory() as folder, Router(["gpu0"]) as router:
        ...     capture = Capture(f"{folder}/capture.jsonl")
        ...     router.attach(capture)
        ...     for _ in range(2):
        ...         router.select_worker(tokens=range(100)).on_complete(cached_tokens=0)
        ...     router.detach(capture)
        ...     traffic = read_capture(Path(folder, "capture.jsonl"))
        >>> traffic.workload.infinite_hits(), traffic.policy, traffic.ended
        (0.48, 'adaptive', 'stopped')
    """

    workload: Workload
    records: tuple[DecisionRecord, ...]
    policy: str | None
    workers: tuple[CapturedWorker, ...]
    ended: str | None
    missing: int
    files: RecordFiles


@dataclass(frozen=True, slots=True)
class _Prompt:
    units: int
    block_size: int
    blocks: npt.NDArray[np.uint64]
    session: str


def read_capture(path: str | Path, *, model: str | None = None, limit: int | None = None) -> CapturedTraffic:
    """Read a capture, up to where it is damaged.

    Args:
        path: The file.
        model: Only requests for this model, for routers that have one with blocks of another size.
        limit: Read so many requests.

    Returns:
        The requests, and the facts on the capture.

    Raises:
        ValueError: ``limit`` is out of range.
        TraceError: It has no request that can be run, or models with blocks of different sizes.
        OSError: The file cannot be read.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from cachelb_lab.sim.workloads import read_capture
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "capture.jsonl")
        ...     _ = path.write_text("no capture")
        ...     try:
        ...         read_capture(path)
        ...     except ValueError as error:
        ...         print(str(error).replace(folder, ""))
        /capture.jsonl: no completed requests of a capture in 1 lines, first /capture.jsonl:1: not JSON
    """
    if limit is not None:
        whole("limit", limit, 0, 1 << 32)
    files = RecordFiles((Path(path),))
    markers: list[dict[str, Any]] = []
    records: list[DecisionRecord] = []
    captured: list[tuple[DecisionRecord, _Prompt]] = []
    total = 0
    for (record, prompt), row in islice(files.read(_read), None if limit is None else limit + 1):
        if record is None:
            markers.append(row)
        elif model is None or record.model == model:
            records.append(record)
            if prompt is not None and record.outcome == _COMPLETED and prompt.units:
                captured.append((record, prompt))
                total += len(prompt.blocks)
        if total > MOST_BLOCKS or len(captured) > MOST_REQUESTS:
            raise TraceError(f"{path}: more than {MOST_REQUESTS} requests or {MOST_BLOCKS} blocks; read it with limit=")
    if not captured:
        problem = f", first {files.bad_lines[0]}" if files.bad_lines else ""
        raise TraceError(f"{path}: no completed requests of a capture in {files.lines} lines{problem}")
    sizes = Counter(prompt.block_size for _, prompt in captured)
    if len(sizes) > 1:
        models = ", ".join(sorted({str(record.model) for record, _ in captured}))
        found = ", ".join(map(str, sorted(sizes)))
        raise TraceError(f"{path}: blocks of {found} tokens; choose one of the models {models}")
    last = markers[-1] if markers else {}
    is_whole = last.get("kind") == "end"
    return CapturedTraffic(
        workload=_workload(Path(path).name, captured),
        records=tuple(records),
        policy=last["policy"] if isinstance(last.get("policy"), str) else None,
        workers=tuple(_workers(last.get("workers"))),
        ended=str(last.get("reason"))[:_SHOWN] if is_whole else None,
        missing=sum(_count(last.get(key)) for key in ("open", "missed")) if is_whole else 0,
        files=files,
    )


def _read(record: DecisionRecord | None, row: dict[str, Any]) -> tuple[DecisionRecord | None, _Prompt | None]:
    """Read the field of a capture."""
    found = row.get("capture")
    if record is None or found is None:
        return record, None
    if not isinstance(found, dict):
        raise SchemaError("field 'capture' is no object")
    units, size = found.get("units"), found.get("block_size")
    if type(units) is not int or type(size) is not int or not (0 <= units <= MOST_TOKENS and 1 <= size <= MOST_TOKENS):
        raise SchemaError("'units' or 'block_size' of a capture is no number of tokens")
    try:
        blocks = base64.b64decode(found.get("blocks") or "", validate=True)
    except (binascii.Error, ValueError, TypeError):
        raise SchemaError("'blocks' of a capture are no Base64") from None
    if len(blocks) % _HASH_BYTES or len(blocks) // _HASH_BYTES > units // size:
        raise SchemaError(f"'blocks' of a capture have {len(blocks)} bytes, and the prompt {units} tokens")
    session = found.get("session")
    return record, _Prompt(units, size, np.frombuffer(blocks, "<u8"), session if isinstance(session, str) else "")


def _workload(name: str, captured: Sequence[tuple[DecisionRecord, _Prompt]]) -> Workload:
    """Make a workload of requests, whose blocks are of one size."""
    captured = sorted(captured, key=lambda one: _arrival_s(one[0]))
    units = np.array([prompt.units for _, prompt in captured], dtype=np.int64)
    size = captured[0][1].block_size
    counted = sum(record.engine_prompt_tokens or record.prompt_tokens for record, _ in captured)
    # A text has as many units as its bytes make, and its engine counts others: one scale keeps equal prefixes equal.
    scale = min(_MOST_SCALE, max(1 / _MOST_SCALE, counted / int(units.sum())))
    block_size = max(1, round(size * scale))
    blocks = units // size
    rest = np.minimum(block_size - 1, np.rint((units - blocks * size) * scale).astype(np.int64))
    prompt_tokens = np.maximum(1, blocks * block_size + rest)
    offsets = np.concatenate([[0], np.cumsum(blocks)])
    if offsets[-1] > MOST_BLOCKS:
        raise TraceError(f"{name}: the prompts have {offsets[-1]} blocks, {MOST_BLOCKS} at most; read it with limit=")
    # Blocks without a hash are shared with no other prompt.
    hashes = mix(np.arange(int(offsets[-1]), dtype=np.uint64))
    for begin, (_, prompt) in zip(offsets.tolist(), captured, strict=False):
        hashes[begin : begin + len(prompt.blocks)] = prompt.blocks
    known = [record.output_tokens for record, _ in captured if record.output_tokens is not None]
    usual = int(np.median(known)) if known else 1
    outputs = [usual if record.output_tokens is None else record.output_tokens for record, _ in captured]
    output_tokens = np.clip(outputs, 1, MOST_TOKENS)
    answers = _answers(captured, (prompt_tokens + output_tokens) // block_size - blocks)
    arrived = np.array([_arrival_s(record) for record, _ in captured])
    sessions = [prompt.session for _, prompt in captured]
    return make(
        name,
        block_size=block_size,
        arrival_s=np.round(arrived - arrived[0], 6),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        hashes=hashes,
        offsets=offsets,
        output_hashes=np.concatenate(answers),
        output_offsets=np.cumsum([0, *map(len, answers)]),
        session=sessions if any(sessions) else None,
    )


def _answers(
    captured: Sequence[tuple[DecisionRecord, _Prompt]], filled: npt.NDArray[np.int64]
) -> list[npt.NDArray[np.uint64]]:
    """Return the blocks of answers, as far as the next prompt of the session goes on behind the prompt.

    `filled` is how many blocks each answer fills.
    """
    answers = [np.empty(0, dtype=np.uint64)] * len(captured)
    latest: defaultdict[str, deque[int]] = defaultdict(lambda: deque(maxlen=_TURNS))
    for row, (record, prompt) in enumerate(captured):
        if not prompt.session:
            continue
        turns = latest[prompt.session]
        for turn in reversed(turns):
            before, earlier = captured[turn]
            end = earlier.units // earlier.block_size
            is_over = before.time_s + (before.duration_s or 0.0) <= _arrival_s(record)
            is_whole = 0 < end == len(earlier.blocks) <= len(prompt.blocks)
            if is_over and is_whole and prompt.blocks[end - 1] == earlier.blocks[-1]:
                if not len(answers[turn]):
                    answers[turn] = prompt.blocks[end : end + int(filled[turn])]
                break
        turns.append(row)
    return answers


def _arrival_s(record: DecisionRecord) -> float:
    return record.time_s - (record.queued_s or 0.0)


def _workers(rows: object) -> list[CapturedWorker]:
    """Read the workers of a first or last line."""
    found = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return [
        CapturedWorker(
            str(row.get("key")),
            row["gpu"] if isinstance(row.get("gpu"), str) else None,
            _count(row.get("kv_tokens")) or None,
        )
        for row in found
    ]


def _count(value: object) -> int:
    """Return a count, 0 for what is none."""
    return value if type(value) is int and 0 <= value < 1 << 53 else 0
