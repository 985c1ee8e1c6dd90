"""Reads the training data that Lodestar's repository publishes (gangmuk/Lodestar, `training/data`)."""

from __future__ import annotations

import csv
import lzma
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from cachelb.learned import FEATURES
from cachelb_lab.samples import Samples

_COLUMNS = {
    "kv_hit_ratio": "kv_hit_ratio",
    "running": "running_requests",
    "waiting": "waiting_requests",
    "prefill_tokens": "prefill_tokens",
    "decode_tokens": "decode_tokens",
    "kv_usage": "gpu_kv_cache",
    "inflight": "inflight_requests",
}
_PERCENT = 100.0
_MILLISECONDS = 1000.0


def read_lodestar(path: str | os.PathLike[str]) -> Samples:
    """Read one of Lodestar's tables: features of the worker that was selected, or a snapshot of all workers.

    Args:
        path: A `.csv` or `.csv.xz` with the columns of `*_pod_specific_data` or `*_processed_dataset`.

    Returns:
        The samples. Those of a table with times are in the order of time, others in that of the file. The time to the
        first token is in seconds.

    Raises:
        ValueError: It is another kind of table; the message names what is missing, or the line that is wrong.
        OSError: The file cannot be read.

    Example:
        >>> import csv, tempfile
        >>> from cachelb_lab.lodestar import read_lodestar
        >>> row = {"ttft": 250, "input_tokens": 900, "gpu_model": "L20", "kv_hit_ratio": 50, "running_requests": 1}
        >>> row |= {"waiting_requests": 0, "prefill_tokens": 0, "decode_tokens": 64, "gpu_kv_cache": 10}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with open(f"{folder}/table.csv", "w") as file:
        ...         table = csv.DictWriter(file, [*row, "inflight_requests"])
        ...         _ = table.writeheader()
        ...         _ = table.writerow(row | {"inflight_requests": 1})
        ...     samples = read_lodestar(f"{folder}/table.csv")
        >>> samples.costs.tolist(), samples.gpus
        ([0.25], ['L20'])
    """
    file = Path(path)
    with lzma.open(file, "rt", newline="") if file.suffix == ".xz" else file.open(newline="") as text:
        rows = csv.DictReader(text)
        names = set(rows.fieldnames or ())
        whole = "selected_pod" in names
        wanted = {"ttft", "input_tokens"} | ({"request_start_time"} if whole else {"gpu_model", *_COLUMNS.values()})
        if missing := sorted(wanted - names):
            raise ValueError(f"{file.name} is no table of Lodestar: it has no column {', '.join(missing)}")
        return _collect(file.name, rows, whole=whole)


def _collect(name: str, rows: csv.DictReader[str], *, whole: bool) -> Samples:
    taken = []
    for row in rows:
        try:
            taken.append(_sample(row, whole=whole))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{name}:{rows.line_num}: {error!r}") from error
    if whole:
        taken.sort(key=lambda sample: sample[0])
    features = np.array([sample[1] for sample in taken], np.float32).reshape(-1, len(FEATURES))
    return Samples(features, [sample[2] for sample in taken], np.array([sample[3] for sample in taken], np.float32))


def _sample(row: Mapping[str, str], *, whole: bool) -> tuple[float, list[float], str, float]:
    """Time, features, device and cost of one line."""
    prefix = f"pod_{row['selected_pod'].replace('.', '_')}-" if whole else ""
    values = {ours: float(row[prefix + theirs]) for ours, theirs in _COLUMNS.items()}
    values["kv_hit_ratio"] /= _PERCENT
    values["input_tokens"] = float(row["input_tokens"])
    values["uncached_tokens"] = values["input_tokens"] * (1.0 - values["kv_hit_ratio"])
    time = float(row["request_start_time"]) if whole else 0.0
    return time, [values[name] for name in FEATURES], row[f"{prefix}gpu_model"], float(row["ttft"]) / _MILLISECONDS
