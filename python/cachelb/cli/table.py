"""Tables of commands, as wide as the terminal, and text that a terminal may show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_PIPE_WIDTH = 200
UNBOUNDED = 10_000
"""Columns of a table without a cut."""


def printable(text: str) -> str:
    r"""Replace characters that a terminal would interpret: files and pages may hold anything. Keeps the length.

    Example:
        >>> printable("gpu0\x1b[2J")
        'gpu0?[2J'
    """
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def new_table(title: str | None, texts: Sequence[str], numbers: Sequence[str]) -> Table:
    """Begin a table: text columns, then number columns."""
    table = Table(title=title, title_justify="left", caption_justify="left")
    for header in texts:
        table.add_column(header, overflow="fold")
    for header in numbers:
        table.add_column(header, justify="right", no_wrap=True)
    return table


def fitted(out: Console, build: Callable[[Sequence[str]], Table], least: Sequence[str]) -> Table:
    """Build a table without the first of its least columns, as many as there is no room for, and name those below it.

    A truncated figure is useless; the JSON document has all columns.
    """
    table, named = build(()), []
    for nth, header in enumerate(least, 1):
        if (width := _width(out, table)) <= out.width:
            break
        table = build(least[:nth])
        named += [header] * (_width(out, table) < width)  # not those that the table never had
    if named:
        headers = ", ".join(named).replace("-\n", "").replace("\n", " ")
        table.caption = f"{table.caption or ''}\nno room here for {headers}; --json has all".strip()
    return table


def _width(out: Console, table: Table) -> int:
    """Return the width of a table without a cut or a fold."""
    return out.measure(table, options=out.options.update(width=UNBOUNDED)).maximum


def console() -> Console:
    """Return the console for tables; a pipe gets a width of its own."""
    out = Console()
    return out if out.is_terminal else Console(width=_PIPE_WIDTH)
