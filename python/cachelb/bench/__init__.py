"""Benchmarks of the core and its alternatives on this machine, for `cachelb bench`.

Alternatives that are installed take part, the others are named as missing. All do the same work on the same prompts, in
turns within one run, so that whatever else the machine does meets all of them; every answer that is timed is also
compared with the truth.
"""

from __future__ import annotations

from cachelb.bench.comparing import Report, compare
from cachelb.bench.rows import Row

__all__ = ["Report", "Row", "compare"]
