"""`cachelb bench agentic`: sessions of coding agents, by policy."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from cachelb.cli.options import COUNT, NOT_NEGATIVE, POSITIVE, json_option, option, policy_option, threads_option
from cachelb.cli.progress import progress_bar
from cachelb.cli.source import Source
from cachelb.cli.table import SPREAD, console, fitted, halfway, new_table, printable, seconds
from cachelb.errors import CachelbError
from cachelb.sim.agentic import measure_sessions
from cachelb.sim.comparison import Spread
from cachelb.sim.fleet import DEFAULT_MODEL, FleetSpec
from cachelb.sim.metrics import json_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rich.table import Table

    from cachelb.sim.agentic import SessionFigures

    Found = Mapping[str, Sequence[SessionFigures]]

_POLICIES = "adaptive,cache-aware,sticky-until-saturated,overlap-cost+events,round-robin"
_EXAMPLES = """\b
Examples:
  cachelb bench agentic
  cachelb bench agentic --rate 0.03 --fleet 8xh100+8xa100-80
  cachelb bench agentic agent_sessions.jsonl.xz --speed 4 --policy adaptive,adaptive+events
  cachelb bench agentic --seeds 1 --json > agents.json
"""


@click.group(short_help="Measure policies on simulated fleets.")
def bench() -> None:
    """Measure policies on simulated fleets; `python -m benches.structures` in a checkout times the structures."""


@bench.command(epilog=_EXAMPLES)
@click.argument("workload", default="coding-agent")
@policy_option(_POLICIES)
@click.option("--fleet", default="8xh100", show_default=True, metavar="GROUPS", help="Workers, as in `cachelb replay`.")
@click.option("--model", default=DEFAULT_MODEL, show_default=True, help="Model that the workers serve.")
@option("--rate", None, POSITIVE, "Generators: sessions per second.")
@option("--count", None, COUNT, "Generators: requests.")
@option("--limit", None, COUNT, "Files: read the first rows only.")
@option("--speed", 1.0, POSITIVE, "Divide the arrival times of sessions: 2 starts them twice as fast.")
@option("--within", 1.5, click.FloatRange(min=1), "Most engine time of a session on time, by that on an idle fleet.")
@option("--seed", 0, NOT_NEGATIVE, "The first seed.")
@option("--seeds", 3, COUNT, "Runs per policy, each with the next seed.")
@threads_option()
@json_option()
def agentic(
    *,
    workload: str,
    names: list[str],
    fleet: str,
    model: str,
    rate: float | None,
    count: int | None,
    limit: int | None,
    speed: float,
    within: float,
    seed: int,
    seeds: int,
    threads: int,
    as_json: bool,
) -> None:
    """Measure how policies serve sessions of agents on a simulated fleet.

    WORKLOAD is a generator with sessions (coding-agent by default), or a file of recorded sessions
    (docs/replay.md). Each turn follows the answer before it. The engine time of a session, the sum
    of its requests' times without the pauses between them, is compared with that of the same
    session on an idle fleet.
    """
    source = Source(workload, None, rate=rate, count=count, limit=limit, speed=speed, jitter=0.0)
    with progress_bar("simulating", quiet=as_json) as progress:
        try:
            workers = FleetSpec.parse(fleet, model=model, block_size=source.block_size)
            found = measure_sessions(
                source,
                workers,
                names,
                seeds=range(seed, seed + seeds),
                within=within,
                threads=threads,
                progress=progress,
            )
        except (ValueError, TypeError, CachelbError) as error:
            raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(_document(found, workload=workload, fleet=workers.describe(), within=within))
    else:
        _print(found, title=f"{printable(workload)} on {workers.describe()}, {seeds} seeds", within=within)


def _document(found: Found, **settings: object) -> str:
    """Return the JSON document; what is infinite or missing is null."""
    policies = {policy: [json_value(asdict(figures)) for figures in runs] for policy, runs in found.items()}
    return json.dumps({**settings, "policies": policies}, indent=2, allow_nan=False)


def _print(found: Found, *, title: str, within: float) -> None:
    """Print a row per policy, the most sessions on time first."""

    def build(dropped: Sequence[str]) -> Table:
        columns = [column for column in _COLUMNS if column not in dropped]
        table = new_table(title, ["policy"], columns)
        for policy, runs in sorted(found.items(), key=lambda row: -Spread.of([run.on_time for run in row[1]]).mean):
            table.add_row(policy, *(_cell(runs, column, dropped) for column in columns))
        return table

    out = console()
    out.print(fitted(out, build, _LEAST))
    out.print(
        f"on time: completed in at most {within:g} times the engine time of the same session on an idle fleet\n"
        "slowdown: that multiple; GPU h: hours at work of all GPUs, per session on time\n"
        "mean of the seeds; ± half the distance from the lowest to the highest",
        highlight=False,
    )


_COLUMNS: dict[str, tuple[Callable[[SessionFigures], float], Callable[[float], str]]] = {
    "completed": (lambda run: run.completed, "{:.0%}".format),
    "on time": (lambda run: run.on_time, "{:.0%}".format),
    "slowdown\np50": (lambda run: run.slowdown.p50, "{:.2f}".format),
    "slowdown\np90": (lambda run: run.slowdown.p90, "{:.2f}".format),
    "TTFT\nmean": (lambda run: run.ttft_s.mean, seconds),
    "TTFT\np50": (lambda run: run.ttft_s.p50, seconds),
    "TTFT\np90": (lambda run: run.ttft_s.p90, seconds),
    "TTFT\np99": (lambda run: run.ttft_s.p99, seconds),
    "TPOT\nmean": (lambda run: run.tpot_s.mean, seconds),
    "E2E\nmean": (lambda run: run.e2e_s.mean, seconds),
    "session\nmean": (lambda run: run.session_s.mean, seconds),
    "token\nhits": (lambda run: run.hit_rate, "{:.1%}".format),
    "GPU h per\nsession": (lambda run: run.gpu_h_per_session, "{:.3f}".format),
}


def _cell(runs: Sequence[SessionFigures], column: str, dropped: Sequence[str]) -> str:
    figure, shown = _COLUMNS[column]
    spread = Spread.of([figure(run) for run in runs])
    if len(runs) == 1 or not math.isfinite(spread.mean) or not spread.mean or SPREAD in dropped:
        return shown(spread.mean)
    return shown(spread.mean) + halfway(spread)


_LEAST = (
    *("TTFT\np90", "slowdown\np50", "token\nhits", "TPOT\nmean", SPREAD, "GPU h per\nsession", "TTFT\np99"),
    *("E2E\nmean", "completed", "TTFT\np50", "slowdown\np90", "session\nmean"),
)
