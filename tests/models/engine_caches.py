"""The prefix caches of a fleet of engines: what a worker really holds, not what a policy believes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from cachelb._core import EngineCache, hash_blocks


class EngineCaches:
    """One block cache per worker, all of one size: the simulator's."""

    def __init__(self, workers: Iterable[str], *, kv_tokens: int, block_size: int) -> None:
        self._block_size = block_size
        self._caches = {worker: EngineCache(kv_tokens // block_size) for worker in workers}

    def serve(self, worker: str, tokens: npt.NDArray[np.uint32]) -> int:
        """Let a worker compute and keep a prompt; return the leading blocks that it held before."""
        held, _, _ = self._caches[worker].keep(hash_blocks(tokens, self._block_size))
        return held
