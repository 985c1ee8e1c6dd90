"""`cachelb config`: check a configuration, and show what takes effect and why."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from cachelb.cli.errors import message
from cachelb.cli.options import json_option
from cachelb.cli.table import console
from cachelb.errors import ConfigError
from cachelb_gateway import config as configuration

_INVALID = 2
_SCHEMA = Path("schema")  # no configuration, which has a suffix
_EXAMPLES = """\b
Examples:
  cachelb config gateway.toml
  cachelb config gateway.yaml --show
  CACHELB_BLOCK_SIZE=32 cachelb config gateway.toml --show --json
  cachelb config schema > cachelb.schema.json
"""


@click.command(epilog=_EXAMPLES, short_help="Check a configuration file.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--show", "as_list", is_flag=True, help="Print every value that takes effect and where it comes from.")
@json_option("text")
@click.pass_context
def config(context: click.Context, *, file: Path, as_list: bool, as_json: bool) -> None:
    """Check the configuration FILE (.toml, .yaml, .json) with the CACHELB_* variables laid over it.

    Prints ok and exits with 0, or names the first mistake and exits with 2. Secrets are shown as "set". With the word
    schema in place of FILE, it prints the JSON Schema of such files, for editors.
    """
    if file == _SCHEMA:
        click.echo(json.dumps(configuration.json_schema(), indent=2))
        return
    try:
        loaded = configuration.load(file)
    except (ConfigError, OSError, ModuleNotFoundError) as error:
        _refuse(context, message(error), as_json=as_json)
    else:
        if as_json:
            click.echo(json.dumps(_document(loaded, as_list=as_list), indent=2))
        elif as_list:
            _print(loaded)
        else:
            click.echo(f"ok: {_summary(loaded)}")


def _refuse(context: click.Context, problem: str, *, as_json: bool) -> None:
    """Print the error and exit."""
    if as_json:
        click.echo(json.dumps({"ok": False, "error": problem}, indent=2))
    else:
        click.echo(f"Error: {problem}", err=True)
    context.exit(_INVALID)


def _document(loaded: configuration.RouterConfig, *, as_list: bool) -> dict[str, Any]:
    """Build the JSON document."""
    document: dict[str, Any] = {
        "ok": True,
        "source": loaded.source,
        "policy": loaded.policy.name,
        "workers": len(loaded.workers),
        "unused": dict(loaded.unused),
    }
    if as_list:
        document["settings"] = [asdict(row) for row in configuration.show(loaded)]
    return document


def _summary(loaded: configuration.RouterConfig) -> str:
    """Summarise the configuration in one line, with values that take no effect."""
    number = len(loaded.workers)
    summary = f"{loaded.source}: policy {loaded.policy.name}, {number} worker{'' if number == 1 else 's'}"
    unused = "".join(f"\nnot used: {path}, since {reason}" for path, reason in loaded.unused.items())
    return summary + unused


def _print(loaded: configuration.RouterConfig) -> None:
    """Print every value as a table, set values in bold."""
    table = Table()
    table.add_column("setting", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("from", overflow="fold")
    for row in configuration.show(loaded):
        written = json.dumps(row.value, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
        table.add_row(*map(Text, (row.path, written, row.origin)), style=None if row.origin == "default" else "bold")
    for path, reason in loaded.unused.items():
        table.add_row(*map(Text, (path, "not used", reason)), style="dim")
    out = console()
    out.print(table)
