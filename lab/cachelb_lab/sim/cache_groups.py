"""Cache groups in the description of a fleet."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from cachelb.cache_groups import CacheGroup, CacheLayout

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
