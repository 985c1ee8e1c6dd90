"""Options of the commands that compare policies: the list of policies, and the run with its progress bar."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from cachelb import policies
from cachelb.cli.errors import shown
from cachelb.cli.options import COUNT, Command, option
from cachelb.common.calls import split_list
from cachelb.errors import CachelbError
from cachelb_lab.sim.contender import Contender
from cachelb_lab.sim.experiments.compare import compare

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cachelb_lab.sim.experiments.compare import WorkloadSource
    from cachelb_lab.sim.experiments.comparison import Comparison
    from cachelb_lab.sim.fleet import FleetSpec


@contextmanager
def progress_bar(doing: str, *, quiet: bool) -> Iterator[Callable[[float], None]]:
    """Show a bar on stderr, if that is a terminal, while the block runs; yield a function that takes the share done.

    Errors of a simulation in the block are shown as messages of the command.
    """
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=quiet or not sys.stderr.isatty(),
        transient=True,
    )
    with shown(ValueError, TypeError, OSError, CachelbError), bar:
        task = bar.add_task(doing, total=1.0)

        def update(share: float) -> None:
            bar.update(task, completed=share)

        yield update


ALL = "all"
"""Stands for every policy."""

THREADS = min(2, os.cpu_count() or 1)
"""Runs at a time by default."""


def policy_names(_context: click.Context, _parameter: click.Parameter, value: str) -> list[str]:
    """Split a comma-separated list of policies; an unknown name is answered with the nearest one.

    Names and aliases may have options in parentheses and end in ``+events`` or ``+oracle``; repeated ones count once.
    ``all`` stands for every policy.
    """
    names: dict[str, None] = {}
    for name in split_list(value):
        if name == ALL:
            names |= dict.fromkeys(policies.POLICIES)
            continue
        with shown(ValueError, TypeError, CachelbError, by=click.BadParameter):
            contender = Contender.parse(name).canonical()
            contender.check()
        names[str(contender)] = None
    if not names:
        raise click.BadParameter(f"must name at least one policy, or {ALL!r}")
    return list(names)


def policy_option(default: str) -> Callable[[Command], Command]:
    """Give a command ``--policy``; it receives ``names``."""
    return option(
        "--policy names",
        default,
        "NAMES",
        f"Policies, separated by commas; {ALL!r} for every one. NAME(OPTION=VALUE) sets options, module:Class is "
        "one of your own, NAME+events lets engines publish what they cache, NAME+oracle shows the policy everything at "
        "once and exactly.",
        callback=policy_names,
    )


def threads_option() -> Callable[[Command], Command]:
    """Make the option for the number of threads."""
    return option("--threads", THREADS, COUNT, "Runs to compute at a time; figures do not depend on it.")


def run(
    workload: WorkloadSource,
    fleet: FleetSpec,
    names: Sequence[str],
    *,
    as_json: bool,
    **settings: Any,  # noqa: ANN401 - those of `compare`
) -> Comparison:
    """Compare with a progress bar on stderr; none for JSON or where stderr is no terminal."""
    with progress_bar("simulating", quiet=as_json) as progress:
        return compare(workload, fleet, names, progress=progress, **settings)
