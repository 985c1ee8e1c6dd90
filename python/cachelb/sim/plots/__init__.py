"""Pictures of runs: one page for the browser, or images for documents.

Both need the extra ``plots``.
"""

from __future__ import annotations

from cachelb.sim.plots.html import write_html
from cachelb.sim.plots.images import write_images

__all__ = ["write_html", "write_images"]
