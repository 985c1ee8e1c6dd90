"""Images for documents."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cachelb.sim.plots import curves, drawing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from matplotlib.axes import Axes

    from cachelb.sim.result import SimResult

_INCHES = (8.0, 4.5)


def write_images(
    directory: str | Path,
    results: Sequence[SimResult],
    *,
    bounds: Mapping[str, float] | None = None,
    kind: str = "svg",
) -> list[Path]:
    """Write images of the distributions of TTFT, hit rates, shares, and loads over time.

    `kind` is ``svg``, ``png`` or ``pdf``. `bounds` are hit rates by name that no policy is expected to pass, drawn as
    lines.

    Example:
        >>> from cachelb.sim import FleetSpec, build, simulate
        >>> run = simulate(build("rag", seed=1, count=50), FleetSpec.parse("2xh100"))
        >>> write_images("figures", [run], kind="png")  # doctest: +SKIP
    """
    curves.check(results)
    if kind not in drawing.KINDS:
        raise ValueError(f"kind must be 'svg', 'png' or 'pdf', got {kind!r}")
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []

    def draw_one(name: str, draw: Callable[[Axes], None]) -> None:
        file = folder / f"{name}.{kind}"
        written.append(drawing.write_figure(file, _INCHES, lambda figure: draw(figure.add_subplot())))

    draw_one("ttft", lambda axes: _distributions(axes, results))
    draw_one("hit-rate", lambda axes: _hit_rates(axes, results, bounds or {}))
    draw_one("shares", lambda axes: _shares(axes, results))
    for policy, runs in curves.by_policy(results).items():
        draw_one(f"load-{policy}", partial(_loads, result=runs[0]))
    return written


def _distributions(axes: Axes, results: Sequence[SimResult]) -> None:
    for curve in curves.ttft_distributions(results):
        axes.plot(curve.x, curve.y, label=curve.name)
    axes.set(xscale="log", xlabel="seconds to the first token", ylabel="share of requests")
    axes.legend()


def _hit_rates(axes: Axes, results: Sequence[SimResult], bounds: Mapping[str, float]) -> None:
    rates = curves.hit_rates(results)
    spread = [[rate.below for rate in rates], [rate.above for rate in rates]]
    axes.barh([rate.policy for rate in rates], [rate.mean for rate in rates], xerr=spread)
    for name, bound in bounds.items():
        axes.axvline(bound, linestyle="--", color="black", label=name)
    axes.set(xlabel="cached share of prompt tokens")
    if bounds:
        axes.legend()


def _shares(axes: Axes, results: Sequence[SimResult]) -> None:
    grouped = curves.by_policy(results)
    width = 0.8 / len(grouped)
    for place, (policy, runs) in enumerate(grouped.items()):
        shares = curves.shares(runs[0])
        axes.bar([at + place * width for at in range(len(shares))], shares, width, label=policy)
    axes.set(xlabel="worker", ylabel="share of requests")
    axes.legend()


def _loads(axes: Axes, *, result: SimResult) -> None:
    for curve in curves.loads(result):
        axes.plot(curve.x, curve.y, label=curve.name)
    axes.set(xlabel="simulated seconds", ylabel="requests running and waiting")
