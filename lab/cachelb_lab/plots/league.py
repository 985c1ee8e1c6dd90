"""The picture of a league: by policy, how far each cell is from its best."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cachelb_lab.plots import drawing
from cachelb_lab.sim.league.figures import COMPARED

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from cachelb_lab.sim.league import Standings
    from cachelb_lab.sim.league.figures import Compared

_PANELS = tuple(figure for figure in COMPARED if figure.name in ("ttft_mean_s", "ttft_p99_s"))
_WIDTH, _ROW_HEIGHT, _MARGIN = 7.0, 0.28, 1.0
_SPREAD = 0.28
"""Distance between the points of a row, in rows."""
_CELLS, _MIDDLE, _WORST = "#4477aa", "#222222", "#cc3311"
_MOST_RATIO = 1e3
"""Position of an infinite ratio, and of any larger one."""


def write_ratios(path: str | Path, standings: Standings) -> Path:
    """Draw the ratios to the best of each cell, of the mean and the 99th percentile of TTFT.

    The suffix of the file is ``.svg``, ``.png`` or ``.pdf``.

    Example:
        >>> from cachelb_lab.sim.league import Row, Standings
        >>> rows = [Row("c", {}, policy, {"ttft_mean_s": ttft}) for policy, ttft in {"a": 1.0, "b": 2.0}.items()]
        >>> write_ratios("league.svg", Standings(rows))  # doctest: +SKIP
    """
    if not len(standings):
        raise ValueError("there is no cell to draw; run a league first")
    # The best is on top.
    policies = [score.policy for score in standings.scores()][::-1]

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, len(_PANELS), sharey=True, squeeze=False)[0]
        for axes, compared in zip(panels, _PANELS, strict=True):
            _draw(axes, standings, policies, compared)
        panels[0].set_yticks(range(len(policies)), [drawing.label(policy) for policy in policies])
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)

    return drawing.write_figure(path, (_WIDTH, _MARGIN + _ROW_HEIGHT * len(policies)), draw)


def _draw(axes: Axes, standings: Standings, policies: list[str], figure: Compared) -> None:
    """Draw one figure: a row of points per policy, their geometric mean and the worst."""
    names: tuple[str | None, ...] = ("one cell", "geometric mean", "worst cell")
    for at, policy in enumerate(policies):
        ratios = np.sort(np.minimum(list(standings.ratios(policy, figure).values()), _MOST_RATIO))
        if not len(ratios):
            continue
        # Neighbours in value lie apart; no chance is involved.
        rows = at + _SPREAD * (2 * ((np.arange(len(ratios)) * 0.618034) % 1.0) - 1)
        mean = float(np.exp(np.log(ratios).mean()))
        cell, middle, worst = names
        axes.plot(ratios, rows, ".", color=_CELLS, alpha=0.6, markersize=5, markeredgewidth=0, label=cell)
        axes.plot(mean, at, "|", color=_MIDDLE, markersize=12, markeredgewidth=2, zorder=3, label=middle)
        axes.plot(ratios[-1], rows[-1], "o", color=_WORST, markersize=4, markerfacecolor="none", zorder=3, label=worst)
        names = (None, None, None)
    axes.axvline(1.0, color="black", linewidth=0.6)
    axes.set(xscale="log", xlabel="ratio to the best of the cell", ylim=(-0.7, len(policies) - 0.3))
    axes.set_title(figure.title)
    axes.grid(visible=True, axis="x", which="both")
    axes.grid(visible=False, axis="y")
    drawing.label_plainly(axes)
