"""Figures for documents, without a screen: equal figures are equal bytes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("svg", "png", "pdf")
"""What images can be."""


def new_figure(width: float, height: float) -> Figure:
    """Begin a figure.

    Args:
        width: Inches.
        height: Inches.

    Returns:
        An empty figure.

    Raises:
        ModuleNotFoundError: The extra ``plots`` is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("images are drawn by matplotlib; run: pip install 'cachelb[plots]'") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure.

    Args:
        figure: What to write.
        path: The file; its suffix is one of `KINDS`.

    Returns:
        The file.

    Raises:
        ValueError: There is no such kind of image.
        OSError: The file cannot be written.
    """
    from matplotlib import rc_context

    file = Path(path)
    kind = file.suffix.removeprefix(".")
    if kind not in KINDS:
        raise ValueError(f"images are {', '.join(KINDS)}, got {file.name!r}")
    # Without dates and random names, equal runs give equal images.
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    with rc_context({"svg.hashsalt": file.stem}):
        figure.savefig(file, metadata=undated)
    return file
