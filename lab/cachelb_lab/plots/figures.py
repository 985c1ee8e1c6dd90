"""Figures of runs, in files of their own or on one page for the browser."""

from __future__ import annotations

import re
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cachelb_lab.plots import curves, drawing
from cachelb_lab.plots.curves import Runs, results_of
from cachelb_lab.sim.experiments.comparison import Comparison

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from cachelb_lab.sim.result import SimResult

_HEIGHT, _PANEL, _GROUP, _MARGIN = 2.3, 1.3, 0.6, 0.6
_MOST_BARS = 128
"""Bars of one panel; beyond, lines are easier to read."""


class _Kind(NamedTuple):
    """One figure of runs."""

    title: str
    inches: Callable[[Runs], float]  # its height
    draw: Callable[[Figure, Runs, str], Axes]  # returns the axes whose legend it has


def write_figures(
    directory: str | Path,
    runs: Runs,
    *,
    kind: str = "svg",
    width: str = "page",
    figures: Iterable[str] | None = None,
) -> list[Path]:
    """Write figures of runs, one file each.

    Args:
        directory: Where; it is made if it is missing.
        runs: A comparison, of which the first seed is drawn, or runs on one workload.
        kind: ``svg``, ``pdf`` or ``png``.
        width: ``page`` (7 in), with legends on the right, or ``column`` (3.35 in), with legends below.
        figures: Which of `FIGURES`; all by default.

    Returns:
        The files, named after the figures.

    Raises:
        ValueError: There is no such kind, width or figure, or no run.
        ModuleNotFoundError: matplotlib is not installed.

    Example:
        >>> from cachelb_lab.sim import FleetSpec, build, simulate
        >>> run = simulate(build("rag", seed=1, count=50), FleetSpec.parse("2xh100"))
        >>> write_figures("figures", [run], kind="pdf")  # doctest: +SKIP
    """
    names = tuple(FIGURES if figures is None else figures)
    checked = {"kind": (drawing.KINDS, [kind]), "width": (drawing.WIDTHS, [width]), "figures": (FIGURES, names)}
    for key, (known, given) in checked.items():
        if wrong := [one for one in given if one not in known]:
            raise ValueError(f"{key} must be of {', '.join(known)}, got {wrong[0]!r}")
    curves.results_of(runs)
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    return [drawing.write_figure(folder / f"{name}.{kind}", *plan(name, runs, width)) for name in names]


def plan(name: str, runs: Runs, width: str = "page") -> tuple[tuple[float, float], Callable[[Figure], None]]:
    """Return the size of a figure, and the function that draws it."""
    kind = _KINDS[name]

    def draw(figure: Figure) -> None:
        drawing.legend(figure, kind.draw(figure, runs, width), width)

    return (drawing.WIDTHS[width], kind.inches(runs)), draw


def _distribution(figure: Figure, runs: Runs, _width: str, *, name: str, title: str) -> Axes:
    axes = figure.add_subplot()
    _lines(axes, curves.distributions(curves.results_of(runs), name))
    axes.set(xlabel=f"{title}, seconds", ylabel="share of requests served")
    return axes


def _attainment(figure: Figure, runs: Runs, width: str) -> Axes:
    """Draw the share of all requests that are within a limit, by the limit; dotted lines are the limits of the runs."""
    results = curves.results_of(runs)
    limits = (runs.settings["slo"] or {}) if isinstance(runs, Comparison) else {}
    panels = _panels(figure, 2, width)
    for axes, (name, title) in zip(panels, {"ttft_s": "TTFT", "tpot_s": "TPOT"}.items(), strict=True):
        _lines(axes, curves.distributions(results, name, of_all=True))
        if name in limits:
            axes.axvline(limits[name], linestyle=":", color="black", linewidth=0.8)
        axes.set(xlabel=f"{title} limit, seconds")
        if axes is panels[0] or width != "page":
            axes.set_ylabel("share of all requests")
    return panels[0]


def _lines(axes: Axes, drawn: Sequence[curves.Curve]) -> None:
    """Draw shares over seconds."""
    for curve in drawn:
        axes.plot(curve.x, curve.y, label=drawing.label(curve.name))
    axes.set(xscale="log", ylim=(0, 1.02))
    drawing.label_plainly(axes)


def _hits(figure: Figure, runs: Runs, width: str) -> Axes:
    """Draw one group of bars per policy, from the bound on all to the result; whiskers span the seeds."""
    ladders = curves.ladders(runs)
    rungs = [rung for rung in curves.RUNGS if any(rung in rates for rates in ladders.values())]
    axes, high = figure.add_subplot(), 0.8 / len(rungs)
    for nth, rung in enumerate(rungs):
        known = [(at, rates[rung]) for at, rates in enumerate(ladders.values()) if rung in rates]
        axes.barh(
            [at + (nth - (len(rungs) - 1) / 2) * high for at, _ in known],
            [rate.mean for _, rate in known],
            high,
            xerr=[[rate.mean - rate.low for _, rate in known], [rate.high - rate.mean for _, rate in known]],
            error_kw={"elinewidth": 0.8},
            label=f"{rung}: {curves.RUNGS[rung]}",
        )
    axes.set_yticks(range(len(ladders)), [drawing.label(policy, 40 if width == "page" else 24) for policy in ladders])
    axes.set(xlabel="share of prompt tokens", xlim=(0, 1), ylim=(len(ladders) - 0.5, -0.5))
    axes.grid(visible=False, axis="y")
    return axes


def _workers(figure: Figure, runs: Runs, _width: str) -> Axes:
    """Draw requests, tokens and busy seconds by worker, of the first run of each policy."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    policies = {policy: curves.loads_by_worker(same[0]) for policy, same in _grouped(runs).items()}
    panels: list[Axes] = list(figure.subplots(3, 1, sharex=True, squeeze=False).flat)
    for axes, figured in zip(panels, ("requests", "tokens", "busy s"), strict=True):
        for nth, (policy, values) in enumerate(policies.items()):
            curve = curves.by_position(drawing.label(policy), values[figured])
            wide = 0.8 / len(policies)
            if len(curve.x) * len(policies) <= _MOST_BARS:
                axes.bar(curve.x + (nth - (len(policies) - 1) / 2) * wide, curve.y, wide, label=curve.name)
            else:
                axes.plot(curve.x, curve.y, drawstyle="steps-mid", label=curve.name)
        axes.set_ylabel(figured)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        axes.grid(visible=False, axis="x")
    panels[-1].set_xlabel("worker")
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    return panels[0]


def _load(figure: Figure, runs: Runs, _width: str) -> Axes:
    """Draw requests running and waiting over time, of the first run of each policy."""
    grouped = _grouped(runs)
    panels: list[Axes] = list(figure.subplots(len(grouped), 1, sharex=True, sharey=True, squeeze=False).flat)
    for axes, (policy, same) in zip(panels, grouped.items(), strict=True):
        least, mean, most = curves.loads(same[0])
        axes.fill_between(mean.x, least.y, most.y, alpha=0.3, linewidth=0, label="least to most loaded worker")
        axes.plot(mean.x, mean.y, label="mean of the workers")
        axes.set_title(drawing.label(policy), loc="left")
        axes.set_ylim(bottom=0)
    panels[-1].set_xlabel("simulated seconds")
    figure.supylabel("requests running and waiting", fontsize="medium")
    return panels[0]


def _panels(figure: Figure, count: int, width: str) -> list[Axes]:
    """Return axes side by side, in a column below each other."""
    if width == "page":
        return list(figure.subplots(1, count, sharey=True, squeeze=False).flat)
    figure.set_figheight(count * figure.get_figheight())
    return list(figure.subplots(count, 1, squeeze=False).flat)


def _grouped(runs: Runs) -> dict[str, list[SimResult]]:
    return curves.by_policy(curves.results_of(runs))


def _of_latency(name: str, title: str, words: str) -> _Kind:
    return _Kind(words, lambda _runs: _HEIGHT, partial(_distribution, name=name, title=title))


_KINDS = {
    "ttft": _of_latency("ttft_s", "TTFT", "Time to first token"),
    "tpot": _of_latency("tpot_s", "TPOT", "Time per output token"),
    "e2e": _of_latency("e2e_s", "E2E", "Time to the end of the answer"),
    "slo": _Kind("Requests within a limit", lambda _runs: _HEIGHT, _attainment),
    "hits": _Kind("Ladder of hit rates", lambda runs: _MARGIN + _GROUP * len(curves.ladders(runs)), _hits),
    "workers": _Kind("Load per worker", lambda _runs: _MARGIN + 3 * _PANEL, _workers),
    "load": _Kind("Load over time", lambda runs: _MARGIN + _PANEL * len(_grouped(runs)), _load),
}

FIGURES = {name: kind.title for name, kind in _KINDS.items()}
"""Names and titles of the figures that `write_figures` writes."""


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
