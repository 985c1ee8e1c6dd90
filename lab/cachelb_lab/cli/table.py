"""A comparison as a table."""

from __future__ import annotations

import io
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cachelb.admission import AdmissionOptions
from cachelb.cli.table import UNBOUNDED, console, fitted, new_table, printable
from cachelb_lab.sim.contender import admission_apart, admission_in_short

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cachelb_lab.sim.experiments.comparison import Cell, Comparison, Spread
    from cachelb_lab.sim.figures.worst import WorstRequest

SPREAD = "±"
_SECOND = 1.0
_TENFOLD_S = 10.0


def seconds(value: float | None) -> str:
    """Write a span of time with three digits, in milliseconds below a second; None is one that never ended.

    Example:
        >>> seconds(0.0314), seconds(2.5), seconds(125.4), seconds(None)
        ('31.4 ms', '2.50 s', '125 s', '-')
    """
    if value is None:
        return "-"
    unit, scaled = ("s", value) if value >= _SECOND else ("ms", value * 1000)
    digits = 2 if scaled < _TENFOLD_S else 1 if scaled < 10 * _TENFOLD_S else 0
    return f"{scaled:.{digits}f} {unit}"


def print_comparison(comparison: Comparison) -> None:
    """Print one row per policy, the fastest to the first token first; a section per swept value."""
    out = console()
    out.print(fitted(out, partial(_table, comparison), _LEAST))


def table_text(comparison: Comparison) -> str:
    """Return what `print_comparison` prints, as plain text with all columns."""
    out = Console(width=UNBOUNDED, record=True, file=io.StringIO())
    out.print(_table(comparison))
    return out.export_text()


def print_worst(cell: Cell, worst: Sequence[WorstRequest]) -> None:
    """Print the slowest requests of a run."""
    value = "" if cell.value is None else f" at {cell.value}"
    title = f"slowest with {cell.policy}{value}, seed {cell.runs[0].seed}"
    numbers = ("arrives", "TTFT", "E2E", "prompt\ntokens", "predicted\ncached", "cached")
    table = new_table(title, ("row", "worker", "reason"), numbers)
    table.add_column("why", overflow="fold")
    for one in worst:
        table.add_row(
            *(str(one.row), one.worker or "-", one.reason or "-"),
            *map(seconds, (one.arrival_s, one.ttft_s, one.e2e_s)),
            *(f"{one.prompt_tokens:,}", f"{one.predicted_tokens:,}", f"{one.cached_tokens:,}"),
            "; ".join(one.why),
        )
    console().print(table)


def _table(comparison: Comparison, dropped: Sequence[str] = ()) -> Table:
    """Build the table, without some of the least columns."""
    source, fleet, sweep = comparison.workload, comparison.fleet, comparison.sweep
    table = Table(
        title=Text(
            f"{printable(source['name'])}: {source['requests']:,} requests in {source['duration_s']:,.0f} s on "
            f"{fleet['description']}, {fleet['cache_tokens']:,} tokens of KV in all, block {source['block_size']}"
        ),
        caption=_caption(comparison),
        caption_justify="left",
    )
    if sweep is not None:
        table.add_column(sweep.name, no_wrap=True)
    table.add_column("policy", overflow="fold")
    known = {key: column for key, column in _COLUMNS.items() if any(column(cell) != "-" for cell in comparison.cells)}
    columns = {key: column for key, column in known.items() if key not in dropped}
    for header in columns:
        table.add_column(header, justify="right", no_wrap=True)
    for value in (None,) if sweep is None else sweep.values:
        cells = sorted((cell for cell in comparison.cells if cell.value == value), key=_rank)
        whole = [cell for cell in cells if _served_all(cell)]
        for cell in cells:
            first = () if sweep is None else (str(value) if cell is cells[0] else "",)
            style = "bold" if whole and cell is whole[0] else None
            texts = [column(cell) for column in columns.values()]
            if SPREAD in dropped:
                texts = [text.partition(f" {SPREAD}")[0] for text in texts]
            table.add_row(*first, cell.policy, *texts, style=style)
        table.add_section()
    return table


def _caption(comparison: Comparison) -> str:
    """Return the caption: facts beyond the columns."""
    metrics = comparison.cells[0].runs[0].metrics
    pool, infinite = f"{metrics.bound_rate:.1%}", f"{metrics.infinite_rate:.1%}"
    lines = [
        f"bound: one LRU pool of all KV hits {pool} of prompt tokens, an infinite one {infinite}; busy: time at work",
        "tok/s: without warm-up (a tenth of the time of the arrivals) and drain; decide: real time on this machine",
    ]
    if slo := comparison.settings["slo"]:
        limits = " and ".join(f"{key.removesuffix('_s').upper()} <= {seconds(limit)}" for key, limit in slo.items())
        lines.append(f"good: {limits}, without warm-up and drain")
    if within := comparison.settings["within"]:
        lines += [
            f"on time: completed in at most {within:g} times the engine time of the same session on an idle fleet",
            "slowdown: that multiple; GPU h: hours at work of all GPUs, per session on time",
        ]
    if admission := admission_apart(comparison.settings["options"])[1]:
        options = admission_in_short(AdmissionOptions(**admission))
        given = ", ".join(f"{name}={value}" for name, value in options.items())
        lines.append(f"admission, where a policy names no other: {given}")
    if len(comparison.seeds) > 1:
        lines.append(f"mean of {len(comparison.seeds)} seeds; ± half the distance from the lowest to the highest")
    return "\n".join(lines)


def over_seeds(cell: Cell, key: str = "ttft_s.mean") -> float:
    """Return a figure to sort cells by; those without it, as of no request served, come last."""
    spread = cell.spreads.get(key)
    return float("inf") if spread is None else spread.mean


def _rank(cell: Cell) -> tuple[float, float]:
    """Return what rows are sorted by: sessions on time where they are compared, then the mean TTFT."""
    on_time = cell.spreads.get("sessions.on_time")
    return 0.0 if on_time is None else -on_time.mean, over_seeds(cell)


def _served_all(cell: Cell) -> bool:
    """Return whether every request of every seed was served whole."""
    return all(run.metrics.finished == run.metrics.offered for run in cell.runs)


def _done(cell: Cell) -> str:
    """Describe how many requests were served whole, and the outcome of the others."""
    names = ("rejected", "failed", "too_long", "aborted", "unfinished")
    lost = {name: sum(getattr(run.metrics, name) for run in cell.runs) for name in names}
    if not any(lost.values()):
        return "100 %"
    text = f"{cell.spreads['completed'].mean:.2%}"
    return "\n".join([text, *(f"{count:,} {name.replace('_', ' ')}" for name, count in lost.items() if count)])


def _figure(key: str, write: Callable[[float], str] = seconds, *, spread: bool = False) -> Callable[[Cell], str]:
    """Return a column of a figure, a time by default."""

    def column(cell: Cell) -> str:
        found = cell.spreads.get(key)
        if found is None:
            return "-"
        return write(found.mean) + (halfway(found) if spread and len(cell.runs) > 1 and found.mean else "")

    return column


def halfway(spread: Spread) -> str:
    """Return half the distance between the seeds as a share of their mean, to stand behind it."""
    return f" {SPREAD}{(spread.high - spread.low) / 2 / spread.mean:.0%}"


def _decision(cell: Cell) -> str:
    """Return the real time of a selection."""
    return f"{sum(run.cost.select_p50_us for run in cell.runs) / len(cell.runs):.1f} us"


_COLUMNS: dict[str, Callable[[Cell], str]] = {
    "done": _done,
    "completed": _figure("sessions.completed", "{:.0%}".format),
    "on time": _figure("sessions.on_time", "{:.0%}".format, spread=True),
    "slowdown\np50": _figure("sessions.slowdown.p50", "{:.2f}".format),
    "slowdown\np90": _figure("sessions.slowdown.p90", "{:.2f}".format),
    "GPU h per\nsession": _figure("sessions.gpu_h_per_session", "{:.3f}".format, spread=True),
    "TTFT\nmean": _figure("ttft_s.mean", spread=True),
    "TTFT\np50": _figure("ttft_s.p50"),
    "TTFT\np90": _figure("ttft_s.p90"),
    "TTFT\np99": _figure("ttft_s.p99", spread=True),
    "TPOT\nmean": _figure("tpot_s.mean"),
    "E2E\nmean": _figure("e2e_s.mean"),
    "session\nmean": _figure("session_s.mean"),
    "token\nhits": _figure("hit_rate", "{:.1%}".format),
    "of\nbound": _figure("of_bound", "{:.1%}".format),
    "busy\nmax/mean": _figure("busy.max_over_mean", "{:.2f}".format),
    "pre-\nempted": _figure("preemptions", "{:,.0f}".format),
    "output\ntok/s": _figure("output_tokens_per_s", "{:,.0f}".format),
    "good\nreq/s": _figure("goodput_per_s", "{:.2f}".format),
    "decide\np50": _decision,
}

_LEAST = (
    *("decide\np50", "pre-\nempted", "busy\nmax/mean", "output\ntok/s", "of\nbound", "TTFT\np90", "slowdown\np50"),
    *(SPREAD, "token\nhits", "session\nmean", "TPOT\nmean", "E2E\nmean", "TTFT\np50", "TTFT\np99"),
    *("completed", "slowdown\np90", "GPU h per\nsession"),
)
"""The first of these leave a narrow table; what rows are sorted by, and the requests served, stay."""
