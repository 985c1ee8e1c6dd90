"""Options that commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cachelb.admission import text as admission_text

if TYPE_CHECKING:
    from collections.abc import Callable

Command = TypeVar("Command", bound="Callable[..., Any] | click.Command")

COUNT = click.IntRange(min=1)
NOT_NEGATIVE = click.IntRange(min=0)
POSITIVE = click.FloatRange(min=0, min_open=True)
FILE = click.Path(path_type=Path, dir_okay=False)


def option(
    names: str,
    default: object,
    kind: click.ParamType[Any] | str,
    text: str,
    **more: Any,  # noqa: ANN401 - click's
) -> Callable[[Command], Command]:
    """Make an option whose help shows its default, if it has one; behind its name may stand that of the parameter.

    `kind` may be what the help shows of a text.
    """
    more["metavar" if isinstance(kind, str) else "type"] = kind
    return click.option(*names.split(), default=default, show_default=default is not None, help=text, **more)


def parsed(parse: Callable[[str], object]) -> Callable[[click.Context, click.Parameter, str | None], object]:
    """Make an option's callback of a parser that raises TypeError or ValueError."""

    def callback(_context: click.Context, _parameter: click.Parameter, value: str | None) -> object:
        try:
            return None if value is None else parse(value)
        except (ValueError, TypeError) as error:
            raise click.BadParameter(str(error)) from error

    return callback


def admission_option(does: str) -> Callable[[Command], Command]:
    """Make the option for what an admission is built from; the command receives `AdmissionOptions`, or None."""
    return click.option(
        "--admission",
        metavar="OPTIONS",
        callback=parsed(admission_text.parse),
        help=f"{does}: options of cachelb.Admission, as in max_wait_s=1.5,max_pending_tokens=4096; "
        f"{admission_text.DEFAULT!r} for its defaults.",
    )


def json_option(instead_of: str = "the table") -> Callable[[Command], Command]:
    """Make the option that prints JSON."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print JSON instead of {instead_of}.")
