"""A workload as a Mooncake trace, which Dynamo's simulator reads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from cachelb.sim import Workload


def write_mooncake(path: Path, workload: Workload) -> None:
    """Write one row per request; an id stands for one block of the workload.

    Dynamo makes up the tokens of a prompt from its ids, so the tokens behind the last full block need one as well: an
    id of their own. Arrival times are in milliseconds, with all their digits.

    Args:
        path: The file.
        workload: Requests that come by the clock.

    Raises:
        ValueError: A request follows another, which such a file cannot say.
    """
    if (workload.parent >= 0).any():
        raise ValueError(f"{workload.name}: its requests wait for others; read it with loop='open'")
    # Ids count from 0: hashes of 64 bits would take three times the room.
    distinct, ids = np.unique(workload.hashes, return_inverse=True)
    fresh = len(distinct)
    block_size, offsets = workload.block_size, workload.offsets.astype(np.int64)
    with path.open("w", encoding="utf-8") as file:
        for row, (arrival_s, prompt, output) in enumerate(
            zip(workload.arrival_s, workload.prompt_tokens, workload.output_tokens, strict=True)
        ):
            blocks = ids[offsets[row] : offsets[row + 1]].tolist()
            while len(blocks) * block_size < prompt:
                blocks.append(fresh)
                fresh += 1
            table = {"timestamp": arrival_s * 1e3, "input_length": int(prompt), "output_length": int(output)}
            file.write(json.dumps({**table, "hash_ids": blocks}) + "\n")
