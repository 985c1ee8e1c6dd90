"""Cache groups, and memory behind devices, in the description of a fleet: a shared pool, or host memory and links."""

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


_PART: Final = re.compile(
    r"/(?:(pool|tier)=([0-9.]{1,12})(?::([0-9]{1,12}))?|peers=([0-9.]{1,12})(?::([0-9.]{1,12}))?)(?=/|$)"
)
_MOST_BLOCKS: Final = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """A pool that workers share, or the host memory of one: what is computed, they load if computing it takes longer.

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
        if not self.tokens:
            raise ValueError("a pool needs at least 1 token, got 0")

    def blocks(self, block_size: int) -> int:
        """Return the blocks it holds, at least one."""
        return min(max(1, self.tokens // block_size), _MOST_BLOCKS)

    def native(self, block_size: int) -> dict[str, Any]:
        """Return the form the engine model takes."""
        return {"blocks": self.blocks(block_size), "seconds_per_token": self.load_ms_per_token / 1e3}


@dataclass(frozen=True, slots=True)
class PeerSpec:
    """How a worker takes cached blocks from the host memory of others, while its engine computes for other requests.

    Attributes:
        load_ms_per_token: Milliseconds per token; a link carries one transfer at a time in each direction.
        startup_ms: Milliseconds before the first block arrives.
        timeout_s: Until a transfer from a worker that went away is given up.
        best_from: Tokens from which a request for which no source is named takes the longest prefix that another
            worker holds when it is admitted, as a bound of what naming one can bring; None for named sources alone.

    Raises:
        ValueError: A setting is out of range.

    Example:
        >>> PeerSpec(0.0106).native(16)
        {'seconds_per_token': 1.06e-05, 'startup_s': 0.027, 'timeout_s': 30.0, 'best_from': None}
    """

    load_ms_per_token: float
    startup_ms: float = 27.0
    timeout_s: float = 30.0
    best_from: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)

    def native(self, _block_size: int) -> dict[str, Any]:
        """Return the form the engine model takes."""
        return {
            "seconds_per_token": self.load_ms_per_token / 1e3,
            "startup_s": self.startup_ms / 1e3,
            "timeout_s": self.timeout_s,
            "best_from": self.best_from,
        }


def split_memory(text: str) -> tuple[dict[str, PoolSpec | PeerSpec], str]:
    """Read ``/pool=`` or ``/tier=MS_PER_TOKEN[:TOKENS]`` and ``/peers=MS_PER_TOKEN[:STARTUP_MS]`` behind a device.

    Returns them by name, and the rest of the text.

    Example:
        >>> split_memory("/window=128/pool=0.01:4096")
        ({'pool': PoolSpec(load_ms_per_token=0.01, tokens=4096)}, '/window=128')
    """
    found: dict[str, PoolSpec | PeerSpec] = {}
    for part in _PART.finditer(text):
        name, ms, tokens, peer_ms, startup_ms = part.groups()
        if (name or "peers") in found:
            raise ValueError(f"cannot read {part[0]!r} in {text!r}: there is one before it")
        if name is None:
            found["peers"] = PeerSpec(float(peer_ms), float(startup_ms or PeerSpec(0.0).startup_ms))
        else:
            found[name] = PoolSpec(float(ms), *([int(tokens)] if tokens else []))
    return found, _PART.sub("", text)


def describe_memory(**parts: PoolSpec | PeerSpec) -> str:
    """Write what `split_memory` reads."""
    text = ""
    for name, spec in parts.items():
        usual = type(spec)(spec.load_ms_per_token)
        second = "tokens" if isinstance(spec, PoolSpec) else "startup_ms"
        value = getattr(spec, second)
        text += f"/{name}={spec.load_ms_per_token:g}" + ("" if value == getattr(usual, second) else f":{value:g}")
    return text
