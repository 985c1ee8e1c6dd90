"""The prefix cache of an engine, block by block, and its events."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from cachelb._core import EngineCache, hash_blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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

    def look_up(self, tokens: npt.NDArray[np.uint32], namespace: Namespace | None) -> int:
        """Count the tokens of a prompt that are taken from the cache."""
        held = self._blocks.overlap(self._names(tokens, namespace))
        # The last token is computed even if its block is cached, and with it the rest of the block.
        return min(held, (len(tokens) - 1) // self._block_size) * self._block_size

    def keep(self, tokens: npt.NDArray[np.uint32], namespace: Namespace | None, salt: str | None = None) -> None:
        """Hold the blocks of a prompt, as the most recently used ones. Events name the salt alone."""
        names = self._names(tokens, namespace)
        first, end, evicted = self._blocks.keep(names)
        if self._publish is None or first == end:
            return
        cleared = [{"type": "AllBlocksCleared"}] if self._was_cleared else []
        self._was_cleared = False
        removed = [{"type": "BlockRemoved", "block_hashes": [name], "medium": "GPU"} for name in evicted]
        stored = stored_event(
            names[first:end].tolist(),
            parent=int(names[first - 1]) if first else None,
            tokens=tokens[first * self._block_size : end * self._block_size],
            block_size=self._block_size,
            numbers=range(first, end),
            lora=namespace and namespace.lora,
            salt=salt,
        )
        self._publish([*cleared, *removed, stored])

    def clear(self) -> None:
        """Drop everything. As with vLLM, the event comes with the next change."""
        self._blocks.clear()
        self._was_cleared = True

    def _names(self, tokens: npt.NDArray[np.uint32], namespace: Namespace | None) -> npt.NDArray[np.uint64]:
        return hash_blocks(tokens, self._block_size, namespace=namespace, seed=self._seed)


def stored_event(
    names: list[int],
    *,
    parent: int | None,
    tokens: npt.NDArray[np.uint32],
    block_size: int,
    numbers: Iterable[int],
    lora: str | None,
    salt: str | None,
    group: int = 0,
    kind: str = "full_attention",
    window: int | None = None,
) -> dict[str, Any]:
    """Make the event of blocks with these numbers in their prompt; only the first block of a prompt names the salt."""
    keys = [[key for key in (lora, salt if number == 0 else None) if key] or None for number in numbers]
    return {
        "type": "BlockStored",
        "block_hashes": names,
        "parent_block_hash": parent,
        "token_ids": tokens.tolist(),
        "block_size": block_size,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": lora,
        **({"extra_keys": keys} if keys else {}),
        "group_idx": group,
        "kv_cache_spec_kind": kind,
        **({} if window is None else {"kv_cache_spec_sliding_window": window}),
    }
