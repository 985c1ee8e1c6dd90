"""The prefix cache of an engine, the host memory behind it, and their events."""

from __future__ import annotations

import zlib
from collections import OrderedDict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from cachelb._core import GroupedEngineCache, hash_blocks
from cachelb.cache_groups import CacheGroup, CacheLayout
from cachelb_fakes.events.messages import cleared, removed, stored

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
        cached, _ = self._blocks.look_up(self.names(tokens, namespace), len(tokens))
        return cached

    def keep(self, tokens: npt.NDArray[np.uint32], namespace: Namespace | None, salt: str | None = None) -> Kept | None:
        """Hold the blocks of a prompt, as the most recently used ones; return them if they are in use from now on."""
        names = self.names(tokens, namespace)
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
        kept.names = self.names(kept.tokens, kept.namespace)
        self._announce(kept, self._blocks.extend(kept.number, kept.names, len(kept.tokens)))

    def release(self, kept: Kept) -> None:
        """Let the blocks of a request be reused."""
        self._blocks.release(kept.number)

    def clear(self) -> None:
        """Drop everything. As with vLLM, the event comes with the next change."""
        self._blocks.clear()
        self._was_cleared = True

    def names(self, tokens: npt.NDArray[np.uint32], namespace: Namespace | None) -> npt.NDArray[np.uint64]:
        """Name the full blocks of a prompt."""
        return hash_blocks(tokens, self._layout.hash_block, namespace=namespace, seed=self._seed)

    def _announce(self, kept: Kept, steps: list[list[_Change]]) -> None:
        for changes in steps:
            if self._publish is not None and changes:
                dropped = [cleared()] if self._was_cleared else []
                self._was_cleared = False
                self._publish([*dropped, *(self._event(kept, change) for change in changes)])

    def _event(self, kept: Kept, change: _Change) -> dict[str, Any]:
        match change:
            case (number, name):
                return removed([name], group_idx=number)
            case (number, first, end, kept_blocks):
                return self._stored(kept, number, range(first, end), kept_blocks)

    def _stored(self, kept: Kept, number: int, full: range, kept_blocks: list[int]) -> dict[str, Any]:
        """Make the event of blocks that are full; only the first block of a prompt names the salt."""
        group = self._layout.groups[number]
        size, scale = group.block_size, group.block_size // self._layout.hash_block
        lora = kept.namespace and kept.namespace.lora
        keys = [[key for key in (lora, kept.salt if block == 0 else None) if key] or None for block in kept_blocks]
        more = {"extra_keys": keys or None, "kv_cache_spec_sliding_window": group.window}
        return stored(
            (int(kept.names[(block + 1) * scale - 1]) for block in kept_blocks),
            kept.tokens[full.start * size : full.stop * size].tolist(),
            block_size=size,
            parent=int(kept.names[full.start * scale - 1]) if full.start else None,
            lora_name=lora,
            group_idx=number,
            kv_cache_spec_kind=group.kind,
            **{name: value for name, value in more.items() if value is not None},
        )


class HostMemory:
    """The blocks that host memory holds, by name; publishes the events that vLLM's offloading does, names alone."""

    def __init__(self, blocks: int, publish: Callable[[list[dict[str, Any]]], object] | None) -> None:
        self._most = blocks
        self._publish = publish
        self._held: OrderedDict[int, None] = OrderedDict()

    def run_end(self, names: Sequence[int], start: int) -> int:
        """Return where the run of blocks from `start` on ends."""
        return next((at for at in range(start, len(names)) if names[at] not in self._held), len(names))

    def keep(self, names: Sequence[int]) -> None:
        """Hold the blocks of a prompt, as the most recently used ones, its first block the last of them to go."""
        new = dict.fromkeys(name for name in names if name not in self._held)
        for name in reversed(names):
            self._held[name] = None
            self._held.move_to_end(name)
        gone = [self._held.popitem(last=False)[0] for _ in range(len(self._held) - self._most)]
        self._announce(stored((name for name in new if name in self._held), (), block_size=0, medium="CPU"))
        self._announce(removed((name for name in gone if name not in new), medium="CPU"))

    def clear(self) -> None:
        """Evict everything."""
        gone = list(self._held)
        self._held.clear()
        self._announce(removed(gone, medium="CPU"))

    def _announce(self, event: dict[str, Any]) -> None:
        if self._publish is not None and event["block_hashes"]:
            self._publish([event])
