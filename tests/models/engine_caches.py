"""The prefix caches of a fleet of engines: what a worker really holds, not what a policy believes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from cachelb import BlockTracker


class EngineCaches:
    """One leaf-LRU block cache per worker, all of one size."""

    def __init__(self, workers: Iterable[str], *, kv_tokens: int, block_size: int) -> None:
        # One tracker each: the caches share nothing, as engines do not.
        self._caches = {
            worker: BlockTracker(block_size=block_size, max_blocks_per_worker=kv_tokens // block_size)
            for worker in workers
        }

    def serve(self, worker: str, tokens: npt.NDArray[np.uint32]) -> int:
        """Let a worker compute and keep a prompt; return the leading blocks that it held before."""
        cache = self._caches[worker]
        cached = cache.overlaps(tokens).get(worker, 0)
        cache.record_request(tokens, worker)
        return cached
