"""Check of an engine's cache groups: hybrid models resume only where all of them can."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

from cachelb.cache_groups import FULL_KINDS
from cachelb.stats.events import CacheGroupStats
from cachelb_gateway.doctor.verdicts import Check

_KINDS_FIX: Final = "upgrade the engine: its events leave out what layers attend to, and no place to resume is sure"
_UNKNOWN_FIX: Final = "report the kind: until its rule is known, nothing is expected to be cached on this worker"


def alignment(groups: Sequence[CacheGroupStats]) -> int | None:
    """Return the tokens that places to resume at are multiples of, None for full attention alone."""
    sizes = [group.block_size for group in groups if group.block_size]
    return math.lcm(*sizes) if any(is_side(group) for group in groups) else None


def is_side(group: CacheGroupStats) -> bool:
    """Whether a group keeps only what prompts resume with."""
    return group.kind is not None and group.kind not in FULL_KINDS


def check_groups(groups: Sequence[CacheGroupStats], *, unknown_kinds: int, block_size: int) -> Check:
    """Make the check "cache-groups": whether the router, of such a block size, follows every group."""
    name = "cache-groups"
    if not groups:
        return Check(name, "skip", "no event named a group")
    if unknown_kinds:
        return Check(name, "warn", f"{_listed(groups)}: {unknown_kinds} of unknown kind", _UNKNOWN_FIX)
    if len(groups) > 1 and any(group.kind is None for group in groups):
        return Check(name, "warn", f"{len(groups)} groups, some without a kind", _KINDS_FIX)
    step = alignment(groups)
    if step is None:
        return Check(name, "ok", "full attention alone: every block held can be reused")
    seen = f"{_listed(groups)}: prompts resume at multiples of {step} tokens"
    if step % block_size:
        fix = f"use a block_size in the router that divides {step}: other places are not found"
        return Check(name, "warn", f"{seen}, the router's blocks have {block_size}", fix)
    return Check(name, "ok", seen)


def _listed(groups: Sequence[CacheGroupStats]) -> str:
    """List kinds, each with its blocks and how many groups there are."""
    counted = Counter((group.kind or "unsaid", group.block_size, group.window) for group in groups)
    return ", ".join(
        f"{count} x {kind} of {size} tokens" + (f", window {window}" if window else "")
        for (kind, size, window), count in counted.items()
    )
