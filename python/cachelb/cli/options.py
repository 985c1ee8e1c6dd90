"""What the commands share: the policy list and the run with its progress bar."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cachelb import policies
from cachelb.sim.replay import Fleet, compare

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cachelb.sim.report import Report
    from cachelb.sim.traces import Request


def policy_names(_context: click.Context, _parameter: click.Parameter, value: str) -> list[str]:
    """Split a comma-separated list of policies; a wrong name is answered with the nearest one.

    Args:
        value: Names or aliases; repeated ones count once.

    Returns:
        The names in the order given.

    Raises:
        click.BadParameter: There is no such policy.
    """
    names: dict[str, None] = {}
    for name in value.split(","):
        try:
            names[policies.make(name.strip()).name] = None
        except ValueError as error:
            raise click.BadParameter(str(error)) from error
    return list(names)


def run(name: str, requests: Sequence[Request], names: Sequence[str], fleet: Fleet, *, as_json: bool) -> Report:
    """Replay with a progress bar on stderr; none for JSON or where stderr is no terminal.

    Args:
        name: What the report calls the trace.
        requests: The trace, in order of arrival.
        names: Policies to replay.
        fleet: Workers, caches and seed.
        as_json: JSON is asked for.

    Returns:
        The report.
    """
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=as_json or not sys.stderr.isatty(),
        transient=True,
    )
    with bar:
        tasks = {policy: bar.add_task(policy, total=len(requests)) for policy in names}
        return compare(
            name, requests, names, fleet, on_progress=lambda policy, done: bar.update(tasks[policy], completed=done)
        )


def echo_json(report: Report) -> None:
    """Print a report as JSON.

    Args:
        report: What to print.
    """
    click.echo(json.dumps(report.as_dict(), indent=2))
