"""The prefix cache of an engine with several cache groups, and its events."""

from __future__ import annotations

import zlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from cachelb._core import GroupedEngineCache, hash_blocks
from cachelb.testing.fleet.prefix_cache import stored_event

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from cachelb._core import Namespace
    from cachelb.cache_groups import CacheLayout

_Change: TypeAlias = tuple[int, int] | tuple[int, int, int, list[int]]
"""Of `GroupedEngineCache`: a block that is lost, or blocks that are full and those of them that are kept."""


@dataclass(slots=True)
class Kept:
    """A request whose blocks are in use."""

    number: int
    cached_tokens: int  # taken from the cache
    tokens: npt.NDArray[np.uint32]
    names: npt.NDArray[np.uint64]  # of the hash blocks
    namespace: Namespace | None
    salt: str | None


class GroupedPrefixCache:
    """Blocks of prompts and answers; each step publishes the events that vLLM does."""

    def __init__(
        self,
        name: str,
        *,
        layout: CacheLayout,
        max_blocks: int,
        publish: Callable[[list[dict[str, Any]]], object] | None,
    ) -> None:
        self._seed = zlib.crc32(name.encode())
        self._layout = layout
        self._publish = publish
        self._blocks = GroupedEngineCache(max_blocks, asdict(layout))
        self._was_cleared = False

    def __len__(self) -> int:
        return len(self._blocks)

    def look_up(self, tokens: npt.NDArray[np.uint32], namespace: Namespace | None) -> int:
        """Count the tokens of a prompt that are taken from the cache."""
        cached, _ = self._blocks.look_up(self._names(tokens, namespace), len(tokens))
        return cached

    def keep(self, tokens: npt.NDArray[np.uint32], namespace: Namespace | None, salt: str | None = None) -> Kept:
        """Hold the blocks of a prompt until they are released, as far as there is room."""
        names = self._names(tokens, namespace)
        number, cached, _ = self._blocks.start(names, len(tokens))
        kept = Kept(number, cached, tokens, names, namespace, salt)
        self._announce(kept, self._blocks.prefill(number))
        return kept

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
        group = self._layout.groups[number]
        size, scale = group.block_size, group.block_size // self._layout.hash_block
        return stored_event(
            [int(kept.names[(block + 1) * scale - 1]) for block in kept_blocks],
            parent=int(kept.names[full.start * scale - 1]) if full.start else None,
            tokens=kept.tokens[full.start * size : full.stop * size],
            block_size=size,
            numbers=kept_blocks,
            lora=kept.namespace and kept.namespace.lora,
            salt=kept.salt,
            group=number,
            kind=group.kind,
            window=group.window,
        )
