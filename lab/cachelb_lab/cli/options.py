"""Options of the commands that compare policies: the list of policies, and the run with its progress bar."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from cachelb import policies
from cachelb.cli.errors import shown
from cachelb.cli.options import COUNT, Command, option
from cachelb.common.calls import split_list
from cachelb.errors import CachelbError
from cachelb_lab.cli.progress import progress_bar
from cachelb_lab.sim.contender import Contender
from cachelb_lab.sim.experiments.compare import compare

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cachelb_lab.sim.experiments.compare import WorkloadSource
    from cachelb_lab.sim.experiments.comparison import Comparison
    from cachelb_lab.sim.fleet import FleetSpec

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
    return click.option(
        "--policy",
        "names",
        metavar="NAMES",
        callback=policy_names,
        default=default,
        show_default=True,
        help=f"Policies, separated by commas; {ALL!r} for every one. NAME(OPTION=VALUE) sets options, module:Class is "
        "one of your own, NAME+events lets engines publish what they cache, NAME+oracle shows the policy everything at "
        "once and exactly.",
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
