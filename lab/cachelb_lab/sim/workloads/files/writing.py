"""Writing a workload as generic JSON Lines."""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from cachelb_lab.sim.trace_files.mixing import unmix

if TYPE_CHECKING:
    from cachelb_lab.sim.workloads.workload import Workload


_PACKED: dict[str, Callable[[IO[bytes]], Any]] = {
    ".gz": lambda raw: gzip.GzipFile("", "wb", fileobj=raw, mtime=0),
    ".xz": partial(lzma.open, mode="wb"),
}


def write_workload(workload: Workload, path: str | Path) -> None:
    """Write a workload as generic JSON Lines; `read_generic` reads it back equal.

    Hashes are written as the ids that expand to them, so they are large numbers. ``.gz`` and ``.xz`` compress, ``.zst``
    is refused. Equal workloads give equal bytes.
    """
    if not len(workload):
        raise ValueError("a workload without requests cannot be written")
    path = Path(path)
    if path.suffix == ".zst":
        raise ValueError(f"cannot write {path.name}: use .jsonl, .jsonl.gz or .jsonl.xz")
    with path.open("wb") as raw, _PACKED.get(path.suffix, nullcontext)(raw) as file:
        for line in _lines(workload):
            file.write(line.encode() + b"\n")


def _lines(workload: Workload) -> Iterator[str]:
    """Yield a workload row by row."""
    head: dict[str, Any] = {"workload": workload.name, "seed": workload.seed}
    for row in range(len(workload)):
        parent = int(workload.parent[row])
        think_s = float(workload.think_s[row])
        timing = {"arrival_s": float(workload.arrival_s[row])} if parent < 0 else {"parent": parent, "think_s": think_s}
        fields = head | timing
        fields["input_length"] = int(workload.prompt_tokens[row])
        fields["output_length"] = int(workload.output_tokens[row])
        fields["block_size"] = workload.block_size
        fields["hash_ids"] = unmix(unmix(workload.prompt(row))).tolist()
        answer = workload.answer(row)
        if len(answer):
            fields["output_hash_ids"] = unmix(unmix(answer)).tolist()
        if workload.session is not None:
            fields["session_id"] = workload.session[row]
        if workload.boundaries is not None:
            fields["boundaries"] = workload.message_ends(row).tolist()
        if workload.abort_s is not None and np.isfinite(workload.abort_s[row]):
            fields["abort_s"] = float(workload.abort_s[row])
        yield json.dumps(fields, separators=(",", ":"))
        head = {}
