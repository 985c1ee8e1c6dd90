"""One page with all figures, which needs nothing else to be read: no script, no font, no network."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

from cachelb_lab.plots import drawing
from cachelb_lab.plots.curves import Runs, results_of
from cachelb_lab.plots.figures import FIGURES, plan

_STYLE = (
    "body{font-family:sans-serif;margin:2em auto;max-width:60em;padding:0 1em}"
    "pre{background:#f6f6f6;padding:1em;overflow:auto}svg{max-width:100%;height:auto}"
)


def write_html(path: str | Path, runs: Runs, *, title: str = "cachelb replay", table: str = "") -> None:
    """Write a page with all of `FIGURES` as SVG, within 500 KB for all policies.

    Args:
        path: The file, which is replaced.
        runs: A comparison, of which the first seed is drawn, or runs on one workload.
        title: Head of the page.
        table: Text above the figures.

    Raises:
        ValueError: There is no run.
        OSError: The file cannot be written.
        ModuleNotFoundError: matplotlib is not installed.

    Example:
        >>> from cachelb_lab.sim import FleetSpec, build, simulate
        >>> run = simulate(build("rag", seed=1, count=50), FleetSpec.parse("2xh100"))
        >>> write_html("report.html", [run])  # doctest: +SKIP
    """
    results_of(runs)
    text = f"<h1>{escape(title)}</h1>" + (f"<pre>{escape(table)}</pre>" if table else "")
    drawn = [f"<h2>{escape(words)}</h2>{drawing.inline(name, *plan(name, runs))}" for name, words in FIGURES.items()]
    classes: dict[str, str] = {}  # a class for each style of a line or a text, of which there are many

    def classed(found: re.Match[str]) -> str:
        return f' class="{classes.setdefault(found[1], f"s{len(classes)}")}"'

    figures = re.sub(r' style="([^"]*)"', classed, "\n".join(drawn))
    style = _STYLE + "".join(f".{name}{{{rules}}}" for rules, name in classes.items())
    head = f"<!doctype html><meta charset=utf-8><title>{escape(title)}</title><style>{style}</style>"
    Path(path).write_text(f"{head}\n{text}\n{figures}", encoding="utf-8")
