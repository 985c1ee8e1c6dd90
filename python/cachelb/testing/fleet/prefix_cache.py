"""The prefix cache of an engine, block by block, and its events."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from cachelb._core import EngineCache, hash_blocks

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    from cachelb._core import Namespace


class PrefixCache:
    """Full blocks of prompts, in the cache of the simulator's engines.

    Engines name equal blocks differently, by their own name. Without `publish` no events are made.
    """

    def __init__(
        self, name: str, *, block_size: int, max_blocks: int, publish: Callable[[list[dict[str, Any]]], object] | None
    ) -> None:
        self._seed = zlib.crc32(name.encode())
        self._block_size = block_size
        self._publish = publish
        self._blocks = EngineCache(max_blocks)
        self._was_cleared = False

    def __len__(self) -> int:
        return len(self._blocks)

    def overlap(self, tokens: npt.NDArray[np.uint32], namespace: Namespace | None) -> int:
        """Count the leading blocks that are held."""
        return self._blocks.overlap(self._names(tokens, namespace))

    def keep(self, tokens: npt.NDArray[np.uint32], namespace: Namespace | None, salt: str | None = None) -> None:
        """Hold the blocks of a prompt, as the most recently used ones. Events name the salt alone."""
        names = self._names(tokens, namespace)
        first, end, evicted = self._blocks.keep(names)
        if self._publish is None or first == end:
            return
        cleared = [{"type": "AllBlocksCleared"}] if self._was_cleared else []
        self._was_cleared = False
        removed = [{"type": "BlockRemoved", "block_hashes": [name], "medium": "GPU"} for name in evicted]
        stored = self._stored(names[:end].tolist(), first, tokens, namespace and namespace.lora, salt)
        self._publish([*cleared, *removed, stored])

    def clear(self) -> None:
        """Drop everything. As with vLLM, the event comes with the next change."""
        self._blocks.clear()
        self._was_cleared = True

    def _names(self, tokens: npt.NDArray[np.uint32], namespace: Namespace | None) -> npt.NDArray[np.uint64]:
        return hash_blocks(tokens, self._block_size, namespace=namespace, seed=self._seed)

    def _stored(
        self, names: list[int], first: int, tokens: npt.NDArray[np.uint32], lora: str | None, salt: str | None
    ) -> dict[str, Any]:
        """Publish the blocks from one on; only the first block of a prompt names the salt."""
        keys = [[key for key in (lora, salt if i == 0 else None) if key] or None for i in range(first, len(names))]
        return {
            "type": "BlockStored",
            "block_hashes": names[first:],
            "parent_block_hash": names[first - 1] if first else None,
            "token_ids": tokens[first * self._block_size : len(names) * self._block_size].tolist(),
            "block_size": self._block_size,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": lora,
            "extra_keys": keys,
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }
