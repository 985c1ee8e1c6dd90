"""Times and answers of cachelb's own structures and decisions on this machine.

Every answer of a timed call is also compared with a model that keeps each block by itself. `benches/compare`
measures other systems with the same tasks.
"""

from __future__ import annotations

from benches.structures.rows import Row
from benches.structures.running import Report, measure

__all__ = ["Report", "Row", "measure"]
