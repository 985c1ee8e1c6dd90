"""True caches and service times of the workers of a replayed trace."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cachelb_fakes.fleet.prefix_cache import PrefixCache
from cachelb_lab.sim import Workload
from cachelb_lab.sim.trace_files.mixing import mix

BLOCK = 16
PREFILL_TOKENS_PER_S = 10_000.0
SECONDS_PER_TOKEN = 0.03


class TrueWorkers:
    """One LRU cache per worker; every request is computed at once, beside all others.

    Args:
        names: The workers.
        max_blocks: Blocks that each holds.
    """

    def __init__(self, names: Sequence[str], *, max_blocks: int) -> None:
        self.names = tuple(names)
        self._caches = {
            name: PrefixCache(name, block_size=BLOCK, max_blocks=max_blocks, publish=None) for name in names
        }

    def serve(self, name: str, tokens: npt.NDArray[np.uint32]) -> int:
        """Let a worker take a prompt.

        Returns:
            How many of its tokens it held.
        """
        cache = self._caches[name]
        held = cache.look_up(np.append(tokens, np.uint32(0)), None)  # the token behind it is the one computed
        cache.keep(tokens, None)
        return held


def prompt_of(workload: Workload, row: int) -> npt.NDArray[np.uint32]:
    """Make tokens of a row: equal where its chained block hashes are."""
    hashes = workload.prompt(row)
    spread = mix(np.add.outer(hashes, np.arange(BLOCK, dtype=np.uint64))) >> np.uint64(47)
    tokens = np.zeros(int(workload.prompt_tokens[row]), np.uint32)
    tokens[: spread.size] = spread.ravel()
    return tokens


def times_of(prompt_tokens: int, held: int, output_tokens: int) -> tuple[float, float]:
    """Return the seconds of a request to its first token and to its end."""
    first_s = (prompt_tokens - held) / PREFILL_TOKENS_PER_S
    return first_s, first_s + output_tokens * SECONDS_PER_TOKEN
