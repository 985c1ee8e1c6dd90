"""The pool of blocks that some workers of a simulated fleet share."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from cachelb_lab.sim.checks import check_fields

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
