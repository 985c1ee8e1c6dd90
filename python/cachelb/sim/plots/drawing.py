"""Figures for documents, without a screen: equal figures are equal bytes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure

KINDS = ("svg", "png", "pdf")
"""Formats of images."""


def write_figure(path: str | Path, inches: tuple[float, float], draw: Callable[[Figure], None]) -> Path:
    """Draw and write a figure; the suffix of the file is one of `KINDS`."""
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("images are drawn by matplotlib; run: pip install 'cachelb[plots]'") from error
    file = Path(path)
    kind = file.suffix.removeprefix(".")
    if kind not in KINDS:
        raise ValueError(f"images are {', '.join(KINDS)}, got {file.name!r}")
    figure = Figure(figsize=inches, layout="constrained")
    FigureCanvasAgg(figure)
    draw(figure)
    # Without dates and random names, equal runs give equal images.
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    with rc_context({"svg.hashsalt": file.stem}):
        figure.savefig(file, metadata=undated)
    return file
