"""The prefix cache of an engine, and its events."""

from __future__ import annotations

import zlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from cachelb._core import GroupedEngineCache, hash_blocks
from cachelb.cache_groups import CacheGroup, CacheLayout

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from cachelb._core import Namespace

_Change: TypeAlias = tuple[int, int] | tuple[int, int, int, list[int]]
"""A change of `GroupedEngineCache`: a block that is lost, or full blocks and those of them that are kept."""


@dataclass(slots=True)
class Kept:
    """A request whose blocks are in use."""

    number: int
    tokens: npt.NDArray[np.uint32]
    names: npt.NDArray[np.uint64]  # of the hash blocks
    namespace: Namespace | None
    salt: str | None


class PrefixCache:
    """Blocks of prompts, in the cache of the simulator's engines; each step publishes the events that vLLM does.

    With cache groups, blocks of answers too, which are in use until a request ends. Engines name equal blocks
    differently, by their own name. Without `publish` no events are made.
    """

    def __init__(
        self,
        name: str,
        *,
        block_size: int,
        max_blocks: int,
        publish: Callable[[list[dict[str, Any]]], object] | None,
        layout: CacheLayout | None = None,
    ) -> None:
        self._seed = zlib.crc32(name.encode())
        self._publish = publish
        # Without groups, a block more takes the token that is always computed, and nothing is in use for long.
        self._is_plain = layout is None
        self._layout = layout or CacheLayout([CacheGroup("full_attention", block_size)])
        self._blocks = GroupedEngineCache(max_blocks + self._is_plain, asdict(self._layout))
        self._was_cleared = False

    def __len__(self) -> int:
        return len(self._blocks)

    def look_up(self, tokens: npt.NDArray[np.uint32], namespace: Namespace | None) -> int:
        """Count the tokens of a prompt that are taken from the cache."""
        cached, _ = self._blocks.look_up(self._names(tokens, namespace), len(tokens))
        return cached

    def keep(self, tokens: npt.NDArray[np.uint32], namespace: Namespace | None, salt: str | None = None) -> Kept | None:
        """Hold the blocks of a prompt, as the most recently used ones; return them if they are in use from now on."""
        names = self._names(tokens, namespace)
        length = len(names) * self._layout.hash_block + 1 if self._is_plain else len(tokens)
        number, _, _ = self._blocks.start(names, length)
        kept = Kept(number, tokens, names, namespace, salt)
        self._announce(kept, self._blocks.prefill(number))
        if not self._is_plain:
            return kept
        self.release(kept)
        return None

    def extend(self, kept: Kept, answer: list[int]) -> None:
        """Hold the blocks that an answer fills; its last token is not computed."""
        kept.tokens = np.concatenate([kept.tokens, np.array(answer[:-1], np.uint32)])
        kept.names = self._names(kept.tokens, kept.namespace)
        self._announce(kept, self._blocks.extend(kept.number, kept.names, len(kept.tokens)))

    def release(self, kept: Kept) -> None:
        """Let the blocks of a request be reused."""
        self._blocks.release(kept.number)

    def clear(self) -> None:
        """Drop everything. As with vLLM, the event comes with the next change."""
        self._blocks.clear()
        self._was_cleared = True

    def _names(self, tokens: npt.NDArray[np.uint32], namespace: Namespace | None) -> npt.NDArray[np.uint64]:
        return hash_blocks(tokens, self._layout.hash_block, namespace=namespace, seed=self._seed)

    def _announce(self, kept: Kept, steps: list[list[_Change]]) -> None:
        for changes in steps:
            if self._publish is not None and changes:
                cleared = [{"type": "AllBlocksCleared"}] if self._was_cleared else []
                self._was_cleared = False
                self._publish([*cleared, *(self._event(kept, change) for change in changes)])

    def _event(self, kept: Kept, change: _Change) -> dict[str, Any]:
        match change:
            case (number, name):
                return {"type": "BlockRemoved", "block_hashes": [name], "medium": "GPU", "group_idx": number}
            case (number, first, end, kept_blocks):
                return self._stored(kept, number, range(first, end), kept_blocks)

    def _stored(self, kept: Kept, number: int, full: range, kept_blocks: list[int]) -> dict[str, Any]:
        """Make the event of blocks that are full; only the first block of a prompt names the salt."""
        group = self._layout.groups[number]
        size, scale = group.block_size, group.block_size // self._layout.hash_block
        lora = kept.namespace and kept.namespace.lora
        keys = [[key for key in (lora, kept.salt if block == 0 else None) if key] or None for block in kept_blocks]
        return {
            "type": "BlockStored",
            "block_hashes": [int(kept.names[(block + 1) * scale - 1]) for block in kept_blocks],
            "parent_block_hash": int(kept.names[full.start * scale - 1]) if full.start else None,
            "token_ids": kept.tokens[full.start * size : full.stop * size].tolist(),
            "block_size": size,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": lora,
            **({"extra_keys": keys} if keys else {}),
            "group_idx": number,
            "kv_cache_spec_kind": group.kind,
            **({} if group.window is None else {"kv_cache_spec_sliding_window": group.window}),
        }
