"""A workload as a Mooncake trace, which Dynamo's simulator reads."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from cachelb_lab.sim import Workload


def write_mooncake(path: Path, workload: Workload) -> None:
    """Write one row per request; an id stands for one block of the workload.

    Dynamo makes up the tokens of a prompt from its ids, so the tokens behind the last full block need one as well: an
    id of their own. Times are in milliseconds, with all their digits. Requests that follow each other are the rows of
    one session: the first has its arrival, the others the pause since the end of the one before.

    Args:
        path: The file.
        workload: Requests.

    Raises:
        ValueError: Two requests follow the same one, which such a file cannot express.
    """
    follows = workload.parent >= 0
    parents = workload.parent[follows]
    if len(np.unique(parents)) < len(parents):
        raise ValueError(f"{workload.name}: two requests follow the same one; read it with loop='open'")
    # Ids count from 0: hashes of 64 bits would take three times the room.
    distinct, ids = np.unique(workload.hashes, return_inverse=True)
    fresh = len(distinct)
    block_size, offsets = workload.block_size, workload.offsets.astype(np.int64)
    session = np.arange(len(workload))
    with path.open("w", encoding="utf-8") as file:
        for row, (parent, prompt, output) in enumerate(
            zip(workload.parent.tolist(), workload.prompt_tokens, workload.output_tokens, strict=True)
        ):
            blocks = ids[offsets[row] : offsets[row + 1]].tolist()
            while len(blocks) * block_size < prompt:
                blocks.append(fresh)
                fresh += 1
            if parent < 0:
                table = {"timestamp": workload.arrival_s[row] * 1e3}
            else:
                session[row] = session[parent]
                table = {"delay": workload.think_s[row] * 1e3}
            if follows.any():
                table["session_id"] = str(session[row])
            lengths = {"input_length": int(prompt), "output_length": int(output)}
            file.write(json.dumps({**table, **lengths, "hash_ids": blocks}) + "\n")
