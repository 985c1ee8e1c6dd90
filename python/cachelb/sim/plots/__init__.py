"""Pictures of runs and leagues: one page for the browser, or images for documents.

All need the extra ``plots``.
"""

from __future__ import annotations

from cachelb.sim.plots.html import write_html
from cachelb.sim.plots.images import write_images
from cachelb.sim.plots.league import write_ratios

__all__ = ["write_html", "write_images", "write_ratios"]
