"""Whether memory is flat: distinct prompts by the million through one router under a budget. Not part of the checks.

python benches/endless_prompts.py --prompts 10000000

Prints resident memory and the index while it runs; the last line compares the end with the end of the warm-up.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from cachelb import Router

BATCH = 10_000
PAGE = 4096


def resident_mib() -> float:
    """Read the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 2**20


def main() -> None:
    """Run the soak."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=10_000_000, help="distinct prompts")
    parser.add_argument("--blocks", type=int, default=2, help="blocks per prompt")
    parser.add_argument("--megabytes", type=float, default=64, help="max_memory_mb")
    parser.add_argument("--workers", type=int, default=64)
    options = parser.parse_args()
    workers = [f"http://gpu{index}:8000" for index in range(options.workers)]
    router = Router(workers, max_memory_mb=options.megabytes, seed=1)
    random = np.random.default_rng(1)
    warm = None
    for done in range(0, options.prompts, BATCH):
        for prompt in random.integers(0, 128_000, (BATCH, 16 * options.blocks), dtype=np.uint32):
            router.select_worker(tokens=prompt).on_complete()
        if done % (options.prompts // 20 // BATCH * BATCH or BATCH) == 0:
            stats = router.stats()
            assert stats.index_bytes <= options.megabytes * 2**20
            print(f"{done + BATCH:>12,} prompts: {resident_mib():8.1f} MiB resident, "
                  f"index {stats.index_bytes / 2**20:6.1f} MiB, {stats.index_blocks:,} blocks, "
                  f"{stats.evictions['memory']:,} evicted")  # fmt: skip
            if warm is None and stats.evictions["memory"] > 0:
                warm = resident_mib()
    if warm is not None:
        print(f"after the warm-up {warm:.1f} MiB, at the end {resident_mib():.1f} MiB")


if __name__ == "__main__":
    main()
