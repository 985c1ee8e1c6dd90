"""Rows of a Mooncake trace as they are written, and workloads of such rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cachelb_lab.sim.trace_files.textfile import read_lines
from cachelb_lab.sim.workloads import Given, Workload
from cachelb_lab.sim.workloads.files.traces import Turns


class Row(NamedTuple):
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...]


def read_rows(path: Path) -> list[Row]:
    rows = [json.loads(line) for _, line in read_lines(path)]
    return [
        Row(row["timestamp"] / 1000, row["input_length"], row["output_length"], tuple(row["hash_ids"])) for row in rows
    ]


def workload_of(rows: Sequence[Row], *, id_tokens: int, block_size: int = 16) -> Workload:
    turns = Turns(id_tokens, "input_length", has_started=True)
    for row in rows:
        lengths = row.prompt_tokens, row.output_tokens
        turns.add((0, ""), (row.arrival_s, -1, 0.0), lengths, list(row.hash_ids), "row")
    return turns.workload("rows", Given(np.zeros(1)), block_size=block_size)
