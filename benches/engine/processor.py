"""The share of the processors that other processes took during a measurement: Linux only."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_TICKS = os.sysconf("SC_CLK_TCK")
_BUSY = (0, 1, 2, 5, 6, 7)  # user, nice, system, irq, softirq, steal; guests are in user


class Processors:
    """Measures from its creation on.

    Args:
        groups: Process groups that belong to the measurement, besides this process.
    """

    def __init__(self, groups: Iterable[int]) -> None:
        self._groups = frozenset(groups)
        self._own, self._busy, self._at = self._own_s(), _busy_s(), time.monotonic()

    def others(self) -> float:
        """Return the part of all processors' time that went to other processes, since the start."""
        spent = (_busy_s() - self._busy) - (self._own_s() - self._own)
        return max(0.0, spent / ((time.monotonic() - self._at) * (os.cpu_count() or 1)))

    def _own_s(self) -> float:
        spent = sum(os.times()[:2])
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
                if int(fields[2]) in self._groups:
                    spent += (int(fields[11]) + int(fields[12])) / _TICKS
        return spent


def _busy_s() -> float:
    ticks = [int(field) for field in Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()[1:]]
    return sum(ticks[at] for at in _BUSY) / _TICKS
