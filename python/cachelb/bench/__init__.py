"""Times and answers of cachelb's own structures and decisions on this machine, for `cachelb bench`.

Every answer of a timed call is also compared with a model that keeps each block by itself. `benches/compare` of the
repository measures other systems with the same tasks.
"""

from __future__ import annotations

from cachelb.bench.rows import Row
from cachelb.bench.running import Report, measure

__all__ = ["Report", "Row", "measure"]
