"""Figures of runs and leagues, for papers and as one page for the browser; all need the extra ``plots``.

Legends stand outside the axes, long curves are thinned out, and equal runs give equal files.
"""

from __future__ import annotations

from cachelb_lab.plots.figures import FIGURES, write_figures, write_html
from cachelb_lab.plots.league import write_ratios

__all__ = ["FIGURES", "write_figures", "write_html", "write_ratios"]
