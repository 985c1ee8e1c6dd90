"""Turn the block ids of a trace into block hashes.

A trace has no tokens, only ids of prefix blocks. The expansion is a stable function of those ids,
so two rows share exactly the leading blocks of their common ids.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cachelb.common.arguments import MOST_TOKENS, whole
from cachelb_lab.sim.trace_files.mixing import mix, mix_in_place

_MOST_ID_TOKENS = 65_536
_CHUNK = 65_536  # blocks worked on at a time


def expand_ids(
    ids: npt.NDArray[np.uint64],
    ids_per_row: npt.NDArray[np.int64],
    prompt_tokens: npt.NDArray[np.int64],
    *,
    id_tokens: int,
    block_size: int,
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Return the hashes of the full blocks of many prompts, as `block_hashes` for one, and the offsets of rows.

    Offsets have one entry more, for the end. A block without ids to its end has no hash. A block may hold several ids;
    the last of them then names it, since ids are chained. Works through the ids, which lie row after row, in pieces
    that fit into a processor's cache.

    Example:
        >>> ids, each, tokens = np.array([3, 4], dtype=np.uint64), np.array([2]), np.array([70])
        >>> [len(expand_ids(ids, each, tokens, id_tokens=64, block_size=size)[0]) for size in (16, 64, 128)]
        [4, 1, 0]
    """
    whole("id_tokens", id_tokens, 1, _MOST_ID_TOKENS)
    whole("block_size", block_size, 1, MOST_TOKENS)
    id_ends = np.cumsum(ids_per_row)
    if block_size > id_tokens and block_size % id_tokens == 0:
        ids_per_block = block_size // id_tokens
        blocks = np.minimum(prompt_tokens // block_size, ids_per_row // ids_per_block)
        offsets = _offsets(blocks)
        within = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1].astype(np.int64), blocks)
        last = np.repeat(id_ends - ids_per_row, blocks) + (within + 1) * ids_per_block - 1
        return mix(mix(ids[last])), offsets
    per_id = blocks_per_id(id_tokens, block_size)
    blocks = np.minimum(prompt_tokens // block_size, ids_per_row * per_id)
    offsets = _offsets(blocks)
    # How many blocks each id makes: the last of a row may stand for fewer tokens.
    nth = np.arange(len(ids)) - np.repeat(id_ends - ids_per_row, ids_per_row)
    counts = np.clip(np.repeat(blocks, ids_per_row) - nth * per_id, 0, per_id)
    hashes = np.empty(int(offsets[-1]), dtype=np.uint64)
    index = np.arange(per_id, dtype=np.uint64)
    at, step = 0, max(1, _CHUNK // per_id)
    for begin in range(0, len(ids), step):
        mixed = mix(ids[begin : begin + step])[:, None] + index
        mix_in_place(mixed)
        count = counts[begin : begin + step]
        total = int(count.sum())
        hashes[at : at + total] = mixed[index < count[:, None].astype(np.uint64)]
        at += total
    return hashes, offsets


def _offsets(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Return where each of some runs begins and the last one ends."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.uint64)


def blocks_per_id(id_tokens: int, block_size: int) -> int:
    """Return ``id_tokens // block_size``; the error for one that does not divide lists the sizes that do."""
    whole("id_tokens", id_tokens, 1, _MOST_ID_TOKENS)
    whole("block_size", block_size, 1, MOST_TOKENS)
    if id_tokens % block_size:
        sizes = ", ".join(str(n) for n in range(1, id_tokens + 1) if id_tokens % n == 0)
        raise ValueError(f"block size {block_size} does not divide the trace's {id_tokens}; use one of {sizes}")
    return id_tokens // block_size
