"""Errors of a block as those of a command."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def shown(*errors: type[Exception], by: Callable[[str], click.ClickException] = click.ClickException) -> Iterator[None]:
    """Show these errors as messages of the command, without a traceback."""
    try:
        yield
    except errors as error:
        raise by(str(error)) from error
