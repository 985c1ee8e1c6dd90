"""The prefix caches of a fleet of engines: the true contents, not a policy's view of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from itertools import takewhile

import numpy as np
import numpy.typing as npt

from cachelb.index import hash_blocks


class EngineCaches:
    """One block cache per worker, all of one size: the block that waited longest goes first, of a prompt the last."""

    def __init__(self, workers: Iterable[str], *, kv_tokens: int, block_size: int) -> None:
        self._block_size = block_size
        self._most = kv_tokens // block_size
        self._caches: dict[str, OrderedDict[int, None]] = {worker: OrderedDict() for worker in workers}

    def serve(self, worker: str, tokens: npt.NDArray[np.uint32]) -> int:
        """Let a worker compute and keep a prompt; return the leading blocks that it held before."""
        cache, names = self._caches[worker], hash_blocks(tokens, self._block_size).tolist()
        held = sum(1 for _ in takewhile(cache.__contains__, names))
        for name in reversed(names):
            cache[name] = None
            cache.move_to_end(name)
        while len(cache) > self._most:
            cache.popitem(last=False)
        return held
