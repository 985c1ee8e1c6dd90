"""`python -m benches.structures`: times and answers of cachelb's own structures on this machine."""

from __future__ import annotations

import json
from itertools import groupby

import click
from benches.structures import Report, measure
from benches.structures.running import LEAST_CALLS, MOST_CALLS, TASKS
from rich.console import Console
from rich.table import Table

from cachelb.cli.options import json_option, option

_EXAMPLES = """\b
Examples:
  python -m benches.structures
  python -m benches.structures --task matching --task answers
  python -m benches.structures --calls 2000 --json > figures.json
"""


@click.command(epilog=_EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--task", "tasks", type=click.Choice(TASKS), multiple=True, help="Which tasks; may be repeated. All by default."
)
@option("--calls", 400, click.IntRange(LEAST_CALLS, MOST_CALLS), "Calls per row.")
@json_option()
def main(*, tasks: tuple[str, ...], calls: int, as_json: bool) -> None:
    """Measure cachelb's structures and decisions on this machine.

    Lists, arrays and text of the same prompts are timed in turns within one run, and every answer
    is compared with that of a plain model. `python -m benches.compare` measures other
    systems beside cachelb.
    """
    console = Console(stderr=True, quiet=as_json)
    with console.status("") as status:
        report = measure(tasks or TASKS, calls=calls, progress=lambda task: status.update(f"measuring: {task}"))
    if as_json:
        click.echo(json.dumps(report.to_dict(), indent=2))
    else:
        _print(report)


def _print(report: Report) -> None:
    table = Table("task", "of")
    for column in ("p50", "p99", "unit", "wrong answers"):
        table.add_column(column, justify="right")
    for _, rows in groupby(report.rows, key=lambda row: row.task):
        for row in rows:
            p99 = "" if row.p99 is None else f"{row.p99:.1f}"
            wrong = "" if row.wrong is None else f"{row.wrong} of {row.answers}"
            table.add_row(row.task, row.contender, f"{row.p50:,.1f}", p99, row.unit, wrong)
        table.add_section()
    versions = ", ".join(f"{package} {version}" for package, version in report.versions.items())
    below = {f"{row.task.partition('/')[0]}: {row.note}": None for row in report.rows if row.note}
    console = Console()
    console.print(table)
    for line in (*below, f"{report.machine}; {versions}", *(f"not installed: {each}" for each in report.missing)):
        console.print(line, markup=False, highlight=False)


if __name__ == "__main__":
    main(prog_name="python -m benches.structures")
