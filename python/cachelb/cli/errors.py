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
        raise by(message(error)) from error


def message(error: Exception) -> str:
    """Describe an error in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return str(error)
