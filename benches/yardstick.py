"""A fixed piece of work of the interpreter: how fast, and how busy, the machine is at a moment."""

from __future__ import annotations

import time

import numpy as np

ENTRIES = np.random.default_rng(3).permutation(1 << 15).tolist()


def yardstick() -> int:
    """Do the same work as always. Returns how many nanoseconds it took."""
    begin = time.perf_counter_ns()
    table = {entry: position for position, entry in enumerate(ENTRIES[:400])}
    sum(table[entry] for entry in ENTRIES[:400])
    return time.perf_counter_ns() - begin
