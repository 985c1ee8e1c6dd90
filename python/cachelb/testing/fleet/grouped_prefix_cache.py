"""The prefix cache of an engine with several cache groups, and its events."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cachelb._core import hash_blocks
from cachelb.testing.fleet.prefix_cache import stored_event
from cachelb.testing.grouped_cache import GroupedCache, Removed, Request, Stored

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from cachelb._core import Namespace
    from cachelb.cache_groups import CacheLayout


@dataclass(slots=True)
class Kept:
    """A request whose blocks are in use."""

    request: Request
    tokens: npt.NDArray[np.uint32]
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
        self._blocks = GroupedCache(layout, max_blocks)
        self._was_cleared = False

    def __len__(self) -> int:
        return len(self._blocks)

    def look_up(self, tokens: npt.NDArray[np.uint32], namespace: Namespace | None) -> int:
        """Count the tokens of a prompt that are taken from the cache."""
        return self._blocks.look_up(self._names(tokens, namespace), len(tokens)).cached_tokens

    def keep(self, tokens: npt.NDArray[np.uint32], namespace: Namespace | None, salt: str | None = None) -> Kept:
        """Hold the blocks of a prompt until they are released, as far as there is room."""
        request = self._blocks.look_up(self._names(tokens, namespace), len(tokens))
        self._blocks.admit(request)
        kept = Kept(request, tokens, namespace, salt)
        for changes in self._blocks.prefill(request):
            self._announce(kept, changes)
        return kept

    def extend(self, kept: Kept, answer: list[int]) -> None:
        """Hold the blocks that an answer fills; its last token is not computed."""
        request = kept.request
        kept.tokens = np.concatenate([kept.tokens, np.array(answer[:-1], np.uint32)])
        request.names = self._names(kept.tokens, kept.namespace)
        while request.prompt_tokens <= request.computed < len(kept.tokens):
            changes = self._blocks.step(request, request.computed + 1)
            if changes is None:
                return
            self._announce(kept, changes)

    def release(self, kept: Kept) -> None:
        """Let the blocks of a request be reused."""
        self._blocks.release(kept.request)

    def clear(self) -> None:
        """Drop everything. As with vLLM, the event comes with the next change."""
        self._blocks.clear()
        self._was_cleared = True

    def _names(self, tokens: npt.NDArray[np.uint32], namespace: Namespace | None) -> list[int]:
        names = hash_blocks(tokens, self._layout.hash_block, namespace=namespace, seed=self._seed)
        return [int(name) for name in names]

    def _announce(self, kept: Kept, changes: list[Removed | Stored]) -> None:
        if self._publish is None or not changes:
            return
        cleared = [{"type": "AllBlocksCleared"}] if self._was_cleared else []
        self._was_cleared = False
        self._publish([*cleared, *(self._event(kept, change) for change in changes)])

    def _event(self, kept: Kept, change: Removed | Stored) -> dict[str, Any]:
        if isinstance(change, Removed):
            removed = {"type": "BlockRemoved", "block_hashes": [change.name], "medium": "GPU"}
            return removed | {"group_idx": change.group}
        group = self._layout.groups[change.group]
        names, size = kept.request.names, group.block_size
        scale = size // self._layout.hash_block
        return stored_event(
            [names[(number + 1) * scale - 1] for number in change.kept],
            parent=names[change.first * scale - 1] if change.first else None,
            tokens=kept.tokens[change.first * size : change.end * size],
            block_size=size,
            numbers=change.kept,
            lora=kept.namespace and kept.namespace.lora,
            salt=kept.salt,
            group=change.group,
            kind=group.kind,
            window=group.window,
        )
