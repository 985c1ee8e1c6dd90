"""Entry point of the command `cachelb`: imports the extra, maps outcomes to exit codes."""

from __future__ import annotations

import sys

_EXTRA = frozenset({"click", "rich"})
_FAILED = 1
_INTERRUPTED = 130  # 128 + SIGINT, as shells report it


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 success, 1 failure such as an unreadable trace, 2 wrong usage, 130 interrupt."""
    try:
        import click

        from cachelb.cli.app import app
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRA:
            raise
        sys.stderr.write(f"cachelb: the command line needs {package}: install it, or cachelb[cli]\n")
        raise SystemExit(_FAILED) from error
    if "" not in sys.path:  # the current directory, behind packages, so that no file in it takes the place of one
        sys.path.append("")
    try:
        status = app.main(arguments, prog_name="cachelb", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        raise SystemExit(error.exit_code) from error
    except click.Abort as error:
        sys.stderr.write("cachelb: interrupted\n")
        raise SystemExit(_INTERRUPTED) from error
    raise SystemExit(status or 0)
