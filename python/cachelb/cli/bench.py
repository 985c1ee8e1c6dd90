"""`cachelb bench`: the core beside the alternatives that are installed."""

from __future__ import annotations

import json
from itertools import groupby
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from cachelb.bench import compare
from cachelb.bench.comparing import LEAST_CALLS, MOST_CALLS, TASKS
from cachelb.bench.rows import times

if TYPE_CHECKING:
    from cachelb.bench import Report, Row

_EXAMPLES = """\b
Examples:
  cachelb bench
  cachelb bench --task matching --task answers
  cachelb bench --calls 2000 --json > figures.json
"""
_OWN = "cachelb"


@click.command(epilog=_EXAMPLES)
@click.option(
    "--task", "tasks", type=click.Choice(TASKS), multiple=True, help="Which tasks; may be repeated. All by default."
)
@click.option(
    "--calls",
    type=click.IntRange(LEAST_CALLS, MOST_CALLS),
    default=400,
    show_default=True,
    help="Calls per contender and size.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the tables.")
def bench(*, tasks: tuple[str, ...], calls: int, as_json: bool) -> None:
    """Measure the core on this machine, beside the alternatives that are installed.

    All contenders do the same work on the same prompts, in turns within one run, and every answer
    is compared with the truth. Those that are not installed are named at the end: install them
    beside cachelb to have them take part.
    """
    console = Console(stderr=True, quiet=as_json)
    with console.status("") as status:
        report = compare(tasks or TASKS, calls=calls, progress=lambda task: status.update(f"measuring: {task}"))
    if as_json:
        click.echo(json.dumps(report.to_dict(), indent=2))
    else:
        _print(report)


def _print(report: Report) -> None:
    console = Console()
    for task, rows in groupby(report.rows, key=lambda row: row.task):
        found = list(rows)
        console.print(_table(task, found))
        notes = {row.note: row.contender for row in reversed(found) if row.note}
        for note, contender in reversed(notes.items()):
            console.print(f"{contender}: {note}", markup=False, highlight=False)
    versions = ", ".join(f"{package} {version}" for package, version in report.versions.items())
    console.print(f"{report.machine}; {versions}")
    if report.missing:
        console.print(f"not installed: {', '.join(report.missing)}", markup=False, highlight=False)


def _table(task: str, rows: list[Row]) -> Table:
    """Make the table of one task: medians, and how many times cachelb they cost."""
    own = next((row.p50 for row in rows if row.contender == _OWN), None)
    table = Table(title=task, title_justify="left", title_style="bold")
    table.add_column("")
    for column in (f"p50, {rows[0].unit}", "p99", "x cachelb", "wrong answers"):
        table.add_column(column, justify="right")
    for row in rows:
        ratio = None if own is None else times(row.p50, own, row.unit)
        p99 = "" if row.p99 is None else f"{row.p99:.1f}"
        wrong = "" if row.wrong is None else f"{row.wrong} of {row.answers}"
        table.add_row(row.contender, f"{row.p50:,.1f}", p99, "" if ratio is None else f"{ratio:.1f}", wrong)
    return table
