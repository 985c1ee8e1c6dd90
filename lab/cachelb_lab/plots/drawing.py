"""Drawing without a screen, with settings of its own: equal figures are equal bytes."""

from __future__ import annotations

import io
import re
from contextlib import contextmanager
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from cachelb.common.extras import need

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = ("svg", "png", "pdf")
"""Formats of images."""

WIDTHS = {"page": 7.0, "column": 3.35}
"""Inches of a figure, as papers of two columns have them."""

_COLORS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#555555")
_STYLE = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": "medium",
    "figure.dpi": 100,
    "font.size": 8,
    "grid.alpha": 0.5,
    "grid.linewidth": 0.3,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "pdf.fonttype": 42,  # fonts that journals accept
    "savefig.dpi": 300,
    "text.parse_math": False,  # names may hold anything
}
# Without dates and versions, equal runs give equal images.
_UNDATED = {
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "png": {"Software": None},
}
_LABEL, _LEGEND_LINE, _DECADE = 120, 0.15, 10.0


def write_figure(path: str | Path, inches: tuple[float, float], draw: Callable[[Figure], None]) -> Path:
    """Draw and write a figure; the suffix of the file is one of `KINDS`."""
    file = Path(path)
    kind = file.suffix.removeprefix(".")
    if kind not in KINDS:
        raise ValueError(f"images are {', '.join(KINDS)}, got {file.name!r}")
    with _drawn(inches, draw, {"svg.hashsalt": file.stem}) as figure:
        figure.savefig(file, metadata=_UNDATED[kind])
    return file


def inline(name: str, inches: tuple[float, float], draw: Callable[[Figure], None]) -> str:
    """Draw a figure as an SVG element of a page; ids of figures with different names differ."""
    drawn = io.StringIO()
    with _drawn(inches, draw, {"svg.hashsalt": name, "svg.fonttype": "none"}) as figure:
        figure.savefig(drawn, format="svg", metadata=_UNDATED["svg"])
    element = drawn.getvalue()
    # Ids of groups are numbers, equal in all figures, and nothing refers to them. Comments repeat the texts.
    element = re.sub(r'(?<=<g) id="[^"]*"|<!--.*?-->|(?<=\n)\s+', "", element[element.index("<svg") :])
    element = element.replace(" \nL ", "L")
    return re.sub(r"\d+\.\d{3,}", lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), element)


@contextmanager
def _drawn(inches: tuple[float, float], draw: Callable[[Figure], None], settings: dict[str, str]) -> Iterator[Figure]:
    """Draw with these settings instead of the user's."""
    need("drawing", "matplotlib")
    from cycler import cycler
    from matplotlib import style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = cycler(linestyle=["-", "--", ":", "-."]) * cycler(color=_COLORS)
    with style.context(["default", {**_STYLE, **settings, "axes.prop_cycle": lines}]):
        figure = Figure(figsize=inches, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure)
        yield figure


def label(name: str, line: int = 40) -> str:
    """Return a name fit for a legend: printable, in short lines, and not too long.

    Example:
        >>> label("a" * 200 + chr(27)).count("a"), label("gpu" + chr(27))
        (119, 'gpu?')
    """
    text = "".join(sign if sign.isprintable() else "?" for sign in name)
    lines = fill(text if len(text) <= _LABEL else text[: _LABEL - 1] + "…", line)
    # A legend leaves out names that begin with an underscore.
    return f" {lines}" if lines.startswith("_") else lines


def legend(figure: Figure, axes: Axes, width: str) -> None:
    """Place the legend of some axes outside all of them: on the right of a page, below in a column.

    A figure that has no room for it grows.
    """
    handles, names = axes.get_legend_handles_labels()
    inches = _LEGEND_LINE * (sum(name.count("\n") + 1 for name in names) + 1)
    if width == "page":
        figure.set_figheight(max(figure.get_figheight(), inches))
        figure.legend(handles, names, loc="outside right upper")
        return
    figure.set_figheight(figure.get_figheight() + inches)
    figure.legend(handles, names, loc="outside lower left")


def label_plainly(axes: Axes) -> None:
    """Label the logarithmic axis with numbers instead of powers of ten, as many as there is room for."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    least, most = axes.get_xlim()
    spacious = LogLocator(subs=(1.0, 2.0, 5.0) if most < 3 * _DECADE * least else (1.0, 3.0))
    axes.xaxis.set_major_locator(MaxNLocator(5) if most < _DECADE * least else spacious)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
