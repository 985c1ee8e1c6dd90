"""The cache of an engine with several cache groups, step by step as vLLM 0.32.0 fills it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from cachelb.arguments import whole
from cachelb.cache_groups import CacheGroup, CacheLayout

_Key: TypeAlias = tuple[int, int]
"""A group, and the hash of the prompt up to the end of the block."""

_NO_LIMIT: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Removed:
    """A block of a group lost its content."""

    group: int
    name: int


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks `first` to `end` of a request are full; the group keeps some of them for later requests."""

    group: int
    first: int
    end: int
    kept: tuple[int, ...]


@dataclass(slots=True, eq=False)
class _Block:
    key: _Key | None = None
    references: int = 1


class _Pool:
    """Blocks that groups share. Free ones without content are reused first, the others as they were released."""

    def __init__(self, blocks: int) -> None:
        self.empty = blocks
        self.removed: list[Removed] = []
        self._found: dict[_Key, list[_Block]] = {}
        self._waiting: dict[_Block, None] = {}

    def __len__(self) -> int:
        return len(self._found)

    @property
    def free(self) -> int:
        """Blocks that no request uses."""
        return self.empty + len(self._waiting)

    def __contains__(self, key: _Key) -> bool:
        return key in self._found

    def share(self, key: _Key) -> _Block:
        block = self._found[key][0]
        self._waiting.pop(block, None)
        block.references += 1
        return block

    def take(self) -> _Block:
        if self.empty:
            self.empty -= 1
            return _Block()
        block = next(iter(self._waiting))
        del self._waiting[block]
        assert block.key is not None
        copies = self._found[block.key]
        copies.remove(block)
        if not copies:
            del self._found[block.key]
        self.removed.append(Removed(*block.key))
        return _Block()

    def commit(self, block: _Block, key: _Key) -> None:
        block.key = key
        self._found.setdefault(key, []).append(block)

    def release(self, blocks: Iterable[_Block | None]) -> None:
        """Give blocks up, those to be reused first at the front."""
        for block in blocks:
            if block is None:
                continue
            block.references -= 1
            if block.references == 0 and block.key is None:
                self.empty += 1
            elif block.references == 0:
                self._waiting[block] = None

    def clear(self) -> None:
        self.empty += len(self._waiting)
        for copies in self._found.values():
            for block in copies:
                block.key = None
        self._found.clear()
        self._waiting.clear()


@dataclass(slots=True, eq=False)
class Request:
    """A request in the cache."""

    names: list[int]  # hash up to the end of each hash block of the prompt, then of the answer
    prompt_tokens: int
    cached_tokens: int = 0  # taken from the cache
    held_tokens: int = 0  # that would have been taken if only groups that keep everything counted
    computed: int = 0
    points: tuple[int, ...] = ()  # where later prompts may resume
    blocks: list[list[_Block | None]] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)


class GroupedCache:
    """The blocks of an engine's cache groups, which share one pool and are reused one by one.

    A step computes `max_batched_tokens` of a prompt, all of it by default.

    Example:
        >>> from cachelb.cache_groups import CacheGroup, CacheLayout
        >>> from cachelb.testing.grouped_cache import GroupedCache
        >>> layout = CacheLayout([CacheGroup("mamba", 64), CacheGroup("full_attention", 64)])
        >>> cache = GroupedCache(layout, 100)
        >>> [cache.serve(range(1, 5), 300).cached_tokens for _ in range(2)]
        [0, 256]
    """

    def __init__(self, layout: CacheLayout, max_blocks: int, *, max_batched_tokens: int | None = None) -> None:
        whole("max_blocks", max_blocks, 1)
        if max_batched_tokens is not None:
            whole("max_batched_tokens", max_batched_tokens, 1)
        self.layout = layout
        self._budget = max_batched_tokens or _NO_LIMIT
        self._pool = _Pool(max_blocks)
        self._state = max((group.block_size for group in layout.groups if group.kind == "mamba"), default=0)

    def __len__(self) -> int:
        return len(self._pool)

    def look_up(self, names: Sequence[int], prompt_tokens: int) -> Request:
        """Find what is held of a prompt, which is named by its hashes; the request holds no block yet."""
        layout = self.layout
        held = [
            {i for i in range(prompt_tokens // group.block_size) if (number, self._name(names, group, i)) in self._pool}
            for number, group in enumerate(layout.groups)
        ]
        request = Request(list(names), prompt_tokens)
        request.cached_tokens = layout.hit(prompt_tokens, held)
        request.held_tokens = layout.full_hit(prompt_tokens, held)
        junction = request.held_tokens if request.held_tokens > request.cached_tokens else 0
        request.points = layout.resume_points(prompt_tokens, junction)
        return request

    def admit(self, request: Request) -> None:
        """Hold the blocks that a request takes from the cache, as `look_up` found them just now."""
        hit = request.computed = request.cached_tokens
        for number, group in enumerate(self.layout.groups):
            first, end = group.first_read(hit) // group.block_size, hit // group.block_size
            found = [self._pool.share((number, self._name(request.names, group, i))) for i in range(first, end)]
            request.blocks.append([*[None] * first, *found])
            request.committed.append(end)

    def prefill(self, request: Request) -> Iterator[list[Removed | Stored]]:
        """Compute the rest of a prompt, as far as there is room; yields the changes of each step."""
        while request.computed < request.prompt_tokens:
            changes = self.step(request, self._chunk_end(request))
            if changes is None:
                return
            yield changes

    def step(self, request: Request, end: int) -> list[Removed | Stored] | None:
        """Compute the tokens of a request up to one; returns what changed, None if there was no room."""
        groups = self.layout.groups
        for group, blocks in zip(groups, request.blocks, strict=True):
            self._drop(blocks, group.first_read(request.computed) // group.block_size)
        wanted = [self._missing(group, blocks, end) for group, blocks in zip(groups, request.blocks, strict=True)]
        if sum(new for _, new in wanted) > self._pool.free:
            return None
        for blocks, (skipped, new) in zip(request.blocks, wanted, strict=True):
            blocks.extend([None] * skipped)
            blocks.extend(self._pool.take() for _ in range(new))
        request.computed = end
        changes: list[Removed | Stored] = [*self._pool.removed]
        self._pool.removed.clear()
        return changes + [stored for number in range(len(groups)) if (stored := self._commit(request, number))]

    def release(self, request: Request) -> None:
        """Give up the blocks of a request; what was kept of them can be found until they are reused."""
        for blocks in request.blocks:
            self._pool.release(reversed(blocks))
        request.blocks.clear()

    def serve(self, names: Sequence[int], prompt_tokens: int, computed: int = 0) -> Request:
        """Serve a request alone; all `computed` tokens are those of the prompt and all but the last of its answer."""
        request = self.look_up(names, prompt_tokens)
        self.admit(request)
        for _ in self.prefill(request):
            pass
        for end in range(prompt_tokens + 1, computed + 1):
            if request.computed < end - 1 or self.step(request, end) is None:
                break
        self.release(request)
        return request

    def clear(self) -> None:
        """Forget everything that can be found."""
        self._pool.clear()

    def _name(self, names: Sequence[int], group: CacheGroup, block: int) -> int:
        return names[(block + 1) * group.block_size // self.layout.hash_block - 1]

    def _drop(self, blocks: list[_Block | None], end: int) -> None:
        end = min(end, len(blocks))
        self._pool.release(reversed(blocks[:end]))
        blocks[:end] = [None] * end

    @staticmethod
    def _missing(group: CacheGroup, blocks: list[_Block | None], end: int) -> tuple[int, int]:
        """Return how many blocks a group passes over, and how many it needs: recurrent state takes one, its last."""
        new = max(0, -(-end // group.block_size) - len(blocks))
        return (max(0, new - 1), min(new, 1)) if group.kind == "mamba" else (0, new)

    def _commit(self, request: Request, number: int) -> Stored | None:
        """Keep a group's full blocks up to where a later hit could end."""
        layout, group = self.layout, self.layout.groups[number]
        end = request.computed // layout.alignment * layout.alignment
        if layout.eagle and end:
            end = min(request.computed, end + group.block_size)
        first, full = request.committed[number], end // group.block_size
        if first >= full:
            return None
        request.committed[number] = full
        kept = []
        for i in range(first, full):
            block = request.blocks[number][i]
            if block is not None and layout.keeps(group, i, request.points):
                self._pool.commit(block, (number, self._name(request.names, group, i)))
                kept.append(i)
        return Stored(number, first, full, tuple(kept))

    def _chunk_end(self, request: Request) -> int:
        """Return where the next step of a prefill ends: with recurrent state, where that has to be kept."""
        start, prompt, size = request.computed, request.prompt_tokens, self._state
        end = min(start + self._budget, prompt)
        if not size:
            return end
        if end < prompt and (end // size * size > start or size <= self._budget):
            end = end // size * size
        stops = [point for point in request.points if start < point < end]
        if start % size:
            stops.append((start // size + 1) * size)
        return max(start + 1, min((stop for stop in stops if stop < end), default=end))
