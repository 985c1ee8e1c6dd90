"""The progress bar of commands that take a while."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from cachelb.cli.errors import shown
from cachelb.errors import CachelbError


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
