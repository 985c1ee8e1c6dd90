"""The prefix caches of the simulated engines: what a worker really holds, not what a policy believes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachelb import BlockTracker

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    import numpy.typing as npt


class EngineCaches:
    """One leaf-LRU block cache per worker, all of one size.

    A cache keeps full blocks and drops the least recently used one, a prefix from its end. A
    prompt longer than a cache keeps its first blocks.

    Args:
        workers: Names of the workers.
        kv_tokens: Tokens each cache holds.
        block_size: Tokens per block.

    Raises:
        ValueError: A cache would hold less than one block.

    Example:
        >>> import numpy as np
        >>> caches = EngineCaches(["a", "b"], kv_tokens=4, block_size=2)
        >>> prompt = np.array([1, 2, 3, 4, 5], dtype=np.uint32)
        >>> caches.serve("a", prompt), caches.serve("a", prompt), caches.serve("b", prompt)
        (0, 2, 0)
    """

    def __init__(self, workers: Iterable[str], *, kv_tokens: int, block_size: int) -> None:
        self.max_blocks = engine_blocks(kv_tokens, block_size)
        # One tracker each: the caches share nothing, as engines do not.
        self._caches = {
            worker: BlockTracker(block_size=block_size, max_blocks_per_worker=self.max_blocks) for worker in workers
        }

    def serve(self, worker: str, tokens: npt.NDArray[np.uint32]) -> int:
        """Look a prompt up in a worker's cache, then let the worker compute and keep it.

        Args:
            worker: Who serves the prompt.
            tokens: The prompt.

        Returns:
            Leading blocks that were cached before.

        Raises:
            KeyError: The worker has no cache.
        """
        cache = self._caches[worker]
        cached = cache.overlaps(tokens).get(worker, 0)
        cache.record_request(tokens, worker)
        return cached

    def block_count(self, worker: str) -> int:
        """Return the blocks a worker's cache holds.

        Args:
            worker: Whose cache.

        Returns:
            Blocks, at most `max_blocks`.

        Raises:
            KeyError: The worker has no cache.
        """
        return self._caches[worker].block_count()


def engine_blocks(kv_tokens: int, block_size: int) -> int:
    """Return the full blocks that fit into an engine's KV memory.

    Args:
        kv_tokens: Tokens the memory holds.
        block_size: Tokens per block.

    Returns:
        ``kv_tokens // block_size``.

    Raises:
        ValueError: That is less than one.

    Example:
        >>> engine_blocks(400_000, 512)
        781
    """
    if block_size < 1 or kv_tokens < block_size:
        raise ValueError(f"kv_tokens {kv_tokens} holds no block of {block_size} tokens; raise it")
    return kv_tokens // block_size
