"""Cache groups and the shared pool in the description of a fleet."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from cachelb.cache_groups import CacheGroup, CacheLayout
from cachelb_lab.sim.checks import check_fields

_GROUP = re.compile(r"(?:window=(\d{1,8})|chunk=(\d{1,8})|(mamba))(?:\*(\d{1,2}))?")
_RETAIN = re.compile(r"retain=(?:(\d{1,8})|(all))")
_EXAMPLE: Final = "write /window=1024*5, /mamba*3 or /chunk=8192, then /retain=4096, /retain=all or /eagle"


def parse_layout(text: str, block_size: int) -> CacheLayout:
    """Read the cache groups of a hybrid model; that with full attention comes last.

    `text` is what its layers have beside full attention, with the number of groups behind ``*``: ``/window=TOKENS``,
    ``/mamba`` or ``/chunk=TOKENS``. ``/retain=TOKENS`` keeps their blocks at every so many tokens too, and
    ``/retain=all`` wherever a prompt can be resumed; with ``/eagle`` speculation reads one block beyond that. All
    blocks have `block_size` tokens. ValueError if the text cannot be read, or groups do not go together.

    Example:
        >>> layout = parse_layout("/window=128*2/retain=64", 16)
        >>> len(layout.groups), layout.groups[0].window, layout.retention_interval
        (3, 128, 64)
    """
    groups: list[CacheGroup] = []
    interval: int | None = 0
    eagle = False
    for part in text.removeprefix("/").split("/"):
        if found := _GROUP.fullmatch(part):
            groups += [_group(found, block_size)] * int(found[4] or 1)
        elif found := _RETAIN.fullmatch(part):
            interval = None if found[2] else int(found[1])
        elif part == "eagle":
            eagle = True
        else:
            raise ValueError(f"cache groups {text!r}: cannot read {part!r}; {_EXAMPLE}")
    return CacheLayout([*groups, CacheGroup("full_attention", block_size)], interval, eagle)


def describe_layout(layout: CacheLayout | None) -> str:
    """Write cache groups as `parse_layout` reads them, without the sizes of blocks."""
    if layout is None:
        return ""
    sides = Counter(
        f"/window={group.window}" if group.window else f"/chunk={group.chunk}" if group.chunk else "/mamba"
        for group in layout.groups
        if not group.is_full
    )
    parts = [side + (f"*{count}" if count > 1 else "") for side, count in sides.items()]
    if layout.retention_interval != 0:
        parts.append(f"/retain={layout.retention_interval or 'all'}")
    return "".join(parts) + ("/eagle" if layout.eagle else "")


def _group(found: re.Match[str], block_size: int) -> CacheGroup:
    if found[1]:
        return CacheGroup("sliding_window", block_size, window=int(found[1]))
    if found[2]:
        return CacheGroup("chunked_local_attention", block_size, chunk=int(found[2]))
    return CacheGroup("mamba", block_size)


_POOL: Final = re.compile(r"/pool=([0-9.]{1,12})(?::([0-9]{1,12}))?(?=/|$)")
_MOST_BLOCKS: Final = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """A pool that workers share: what one computes, the others load if computing it takes longer.

    Loading holds up the pass that a request is admitted to, as with connectors that load in step.

    Attributes:
        load_ms_per_token: Milliseconds that loading takes per token.
        tokens: Tokens it holds; the blocks that waited longest make room.

    Raises:
        ValueError: A setting is out of range.

    Example:
        >>> PoolSpec(0.01).native(16)
        {'blocks': 65536, 'seconds_per_token': 1e-05}
    """

    load_ms_per_token: float
    tokens: int = 1 << 20

    def __post_init__(self) -> None:
        check_fields(self)
        if self.load_ms_per_token < 0 or self.tokens < 1:
            raise ValueError(
                f"a pool needs load_ms_per_token of 0 or more and at least 1 token, "
                f"got {self.load_ms_per_token} and {self.tokens}"
            )

    def blocks(self, block_size: int) -> int:
        """Return the blocks it holds, at least one."""
        return min(max(1, self.tokens // block_size), _MOST_BLOCKS)

    def native(self, block_size: int) -> dict[str, Any]:
        """Return the form the engine model takes."""
        return {"blocks": self.blocks(block_size), "seconds_per_token": self.load_ms_per_token / 1e3}


def split_pool(text: str) -> tuple[PoolSpec | None, str]:
    """Read the pool from what is behind a device: ``/pool=MS_PER_TOKEN`` or ``/pool=MS_PER_TOKEN:TOKENS``.

    Returns it, and the rest of the text.

    Example:
        >>> split_pool("/window=128/pool=0.01:4096")
        (PoolSpec(load_ms_per_token=0.01, tokens=4096), '/window=128')
    """
    found = _POOL.search(text)
    if found is None:
        return None, text
    pool = PoolSpec(float(found[1]), *([int(found[2])] if found[2] else []))
    return pool, text[: found.start()] + text[found.end() :]


def describe_pool(pool: PoolSpec | None) -> str:
    """Write a pool as `split_pool` reads it."""
    if pool is None:
        return ""
    usual = PoolSpec(0.0).tokens
    return f"/pool={pool.load_ms_per_token:g}" + ("" if pool.tokens == usual else f":{pool.tokens}")
