"""One page with all pictures, which needs nothing else to be looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any

from cachelb.sim.plots import curves
from cachelb.sim.result import SimResult

_STYLE = "body{font-family:sans-serif;margin:2em auto;max-width:75em}pre{background:#f6f6f6;padding:1em;overflow:auto}"


def write_html(
    path: str | Path,
    results: Sequence[SimResult],
    *,
    title: str = "cachelb replay",
    table: str = "",
    bounds: Mapping[str, float] | None = None,
) -> None:
    """Write a page with the distributions of TTFT, hit rates, shares, loads over time, and requests one by one.

    The file has about 5 MB: it holds the program that draws. Loads and requests are those of each policy's first run.
    `bounds` are hit rates by name that no policy is expected to pass, drawn as lines.

    Example:
        >>> from cachelb.sim import FleetSpec, build, simulate
        >>> run = simulate(build("rag", seed=1, count=50), FleetSpec.parse("2xh100"))
        >>> write_html("report.html", [run])  # doctest: +SKIP
    """
    curves.check(results)
    page = _Page()
    page.add("Time to first token", _distributions(page, results))
    page.add("Hit rate", _hit_rates(page, results, bounds or {}))
    page.add("Share of requests per worker", _shares(page, results))
    for policy, runs in curves.by_policy(results).items():
        page.add(f"{policy}: requests running and waiting", _loads(page, runs[0]))
    for policy, runs in curves.by_policy(results).items():
        page.add(f"{policy}: request by request", _requests(page, runs[0]))
    head = f"<!doctype html><meta charset=utf-8><title>{escape(title)}</title><style>{_STYLE}</style>"
    text = f"<h1>{escape(title)}</h1><pre>{escape(table)}</pre>" if table else f"<h1>{escape(title)}</h1>"
    Path(path).write_text(f"{head}{text}{''.join(page.parts)}", encoding="utf-8")


class _Page:
    """Figures of one page; the first brings the drawing program along."""

    def __init__(self) -> None:
        try:
            graphs = import_module("plotly.graph_objects")  # has no types
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("the page is drawn by plotly; run: pip install 'cachelb[plots]'") from error
        self.graphs: Any = graphs
        self.parts: list[str] = []

    def add(self, heading: str, figure: Any) -> None:  # noqa: ANN401 - plotly's
        """Append a figure under a heading."""
        figure.update_layout(template="plotly_white", height=420, margin={"t": 20, "l": 60, "r": 20, "b": 60})
        number = len(self.parts)
        drawn = figure.to_html(full_html=False, include_plotlyjs=number == 0, div_id=f"figure-{number}")
        self.parts.append(f"<h2>{escape(heading)}</h2>{drawn}")

    def lines(self, drawn: Sequence[curves.Curve], x: str, y: str) -> Any:  # noqa: ANN401 - plotly's
        """Return a figure of lines."""
        figure = self.graphs.Figure()
        for curve in drawn:
            figure.add_scatter(x=curve.x.tolist(), y=curve.y.tolist(), name=curve.name, mode="lines")
        figure.update_layout(xaxis_title=x, yaxis_title=y)
        return figure


def _distributions(page: _Page, results: Sequence[SimResult]) -> Any:  # noqa: ANN401 - plotly's
    figure = page.lines(curves.ttft_distributions(results), "seconds to the first token", "share of requests")
    figure.update_xaxes(type="log")
    return figure


def _hit_rates(page: _Page, results: Sequence[SimResult], bounds: Mapping[str, float]) -> Any:  # noqa: ANN401 - plotly's
    rates = curves.hit_rates(results)
    error = {
        "type": "data",
        "symmetric": False,
        "array": [rate.above for rate in rates],
        "arrayminus": [rate.below for rate in rates],
    }
    figure = page.graphs.Figure()
    figure.add_bar(x=[rate.policy for rate in rates], y=[rate.mean for rate in rates], error_y=error)
    for name, bound in bounds.items():
        figure.add_hline(y=bound, line_dash="dash", annotation_text=name)
    figure.update_layout(yaxis_title="cached share of prompt tokens")
    return figure


def _shares(page: _Page, results: Sequence[SimResult]) -> Any:  # noqa: ANN401 - plotly's
    figure = page.graphs.Figure()
    for policy, runs in curves.by_policy(results).items():
        figure.add_bar(x=runs[0].workers, y=curves.shares(runs[0]).tolist(), name=policy)
    figure.update_layout(barmode="group", yaxis_title="share of requests")
    return figure


def _loads(page: _Page, result: SimResult) -> Any:  # noqa: ANN401 - plotly's
    return page.lines(curves.loads(result), "simulated seconds", "requests")


def _requests(page: _Page, result: SimResult) -> Any:  # noqa: ANN401 - plotly's
    rows = curves.inspected(result)
    figure = page.graphs.Figure()
    figure.add_scattergl(
        x=result.arrival_s[rows].tolist(),
        y=(result.first_token_s - result.arrival_s)[rows].tolist(),
        mode="markers",
        marker={"color": result.worker[rows].tolist(), "colorscale": "Turbo", "size": 5},
        text=[curves.story(result, int(row)) for row in rows],
        hoverinfo="text",
    )
    figure.update_layout(xaxis_title="arrival, simulated seconds", yaxis_title="seconds to the first token")
    return figure
