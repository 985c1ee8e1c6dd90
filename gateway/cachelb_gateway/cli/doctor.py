"""`cachelb doctor`: checks of live engines, with advice; captures of live traffic, and their hit rates."""

from __future__ import annotations

import asyncio
import json
import logging
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.table import Table
from rich.text import Text

from cachelb.cli.errors import shown
from cachelb.cli.options import COUNT, FILE, json_option, option
from cachelb.cli.table import console, printable
from cachelb_gateway.cli.capture import capture

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cachelb.tokenizers import Tokenizer
    from cachelb_gateway.doctor import Check, Diagnosis, Verdict

_ANALYZE: Final = "analyze"
_PORT: Final = click.IntRange(1, 65_535)
_STYLES: Final[dict[Verdict, str]] = {"ok": "green", "warn": "yellow", "fail": "bold red", "skip": "dim"}
_EXAMPLES = """\b
Examples:
  cachelb doctor http://gpu0:8000 http://gpu1:8000
  cachelb doctor http://gpu0:8000 --block-size 16 --tokenizer /models/llama-3.1-8b-instruct
  cachelb doctor http://gpu0:8000 --events-port 5557 --replay-port 5657 --json
  cachelb doctor capture http://127.0.0.1:9090 --seconds 300 -o capture.jsonl
  cachelb doctor analyze capture.jsonl
"""


class _Doctor(click.Group):
    """Checks engines unless a command is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args[:1] == [_ANALYZE] and _ANALYZE not in self.commands:
            raise click.UsageError("cachelb doctor analyze is in cachelb-lab: pip install cachelb-lab")
        if not args or args[0] not in {*self.commands, *ctx.help_option_names}:
            args = ["check", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=_Doctor,
    epilog=_EXAMPLES,
    short_help="Check engines; capture and analyze traffic.",
    subcommand_metavar="[check] URL... | capture URL | analyze FILE",
)
def doctor() -> None:
    """Check live engines (the default), capture live traffic of a gateway, and analyze a capture."""


@doctor.command(epilog=_EXAMPLES, short_help="Check live engines.")
@click.argument("urls", metavar="URL...", nargs=-1, required=True)
@click.option("--api-key", envvar="VLLM_API_KEY", help="Key of the engines' API; or the variable VLLM_API_KEY.")
@click.option("--model", metavar="NAME", help="Model or adapter to probe; the first base model by default.")
@option("--block-size", None, COUNT, "Block size of the router, to compare with the engines'.")
@option("--events-port", None, _PORT, "Port of the event socket, for engines that do not report it.")
@option("--replay-port", None, _PORT, "Port of the replay socket, with --events-port.")
@option(
    "--tokenizer tokenizer_path",
    None,
    click.Path(exists=True, path_type=Path),
    "Model directory or tokenizer.json of the gateway, to compare token ids with the engines'.",
)
@option(
    "--timeout timeout_s",
    10.0,
    click.FloatRange(min=0.1),
    "Seconds an answer, or the events of a prompt, may take.",
)
@click.option("--router", metavar="URL", help="Admin address of the gateway, for settings that engines contradict.")
@click.option("--token-file", type=FILE, help="Bearer token of the admin address.")
@json_option("the tables")
def check(
    *,
    urls: tuple[str, ...],
    tokenizer_path: Path | None,
    token_file: Path | None,
    as_json: bool,
    **given: Any,  # noqa: ANN401 - those of `Settings`
) -> None:
    """Check the engines at each URL: what they serve, their KV caches and events, and whether predictions come true.

    Each engine gets a few short completions of random tokens, with one token of output each. A check is ok, warn (it
    works, but less well than it could), fail, or skip (not checked). The exit code is 1 if a check failed, else 0.
    """
    if given["replay_port"] is not None and given["events_port"] is None:
        raise click.UsageError("--replay-port needs --events-port")
    from cachelb_gateway.doctor import Settings, examine

    # The verdicts contain the event source's log messages.
    logging.getLogger("cachelb").addHandler(logging.NullHandler())
    settings = Settings(
        **given,
        tokenizer=None if tokenizer_path is None else _load(tokenizer_path),
        router_token=None if token_file is None else token_file.read_text("utf-8").strip(),
    )
    with shown(ModuleNotFoundError), shown(ValueError, by=partial(click.BadParameter, param_hint="URL")):
        diagnosis = asyncio.run(examine(urls, settings))
    if as_json:
        click.echo(json.dumps(diagnosis.as_dict(), indent=2))
    else:
        _print(diagnosis)
    if not diagnosis.is_healthy:
        raise click.exceptions.Exit(1)


def _load(path: Path) -> Tokenizer:
    """Load the gateway's tokenizer; a tokenizer.json with the chat template beside it."""
    from cachelb.tokenizers import HfTokenizer

    bad = partial(click.BadParameter, param_hint="--tokenizer")
    with shown(ModuleNotFoundError), shown(OSError, ValueError, by=bad):
        if path.is_file() and path.name != "tokenizer.json":
            return HfTokenizer.from_file(path)
        return HfTokenizer.from_directory(path if path.is_dir() else path.parent)


def _print(diagnosis: Diagnosis) -> None:
    """Print a table per worker, and one for the fleet."""
    out = console()
    for report in diagnosis.workers:
        out.print(_table(report.worker, report.checks))
    if diagnosis.fleet:
        out.print(_table("the fleet", diagnosis.fleet))
    failed = [report.worker for report in diagnosis.workers if report.verdict == "fail"]
    if failed:
        out.print(Text(f"{len(failed)} of {len(diagnosis.workers)} workers fail: {printable(', '.join(failed))}"))


def _table(title: str, checks: Sequence[Check]) -> Table:
    table = Table(title=Text(printable(title)), title_justify="left")
    table.add_column("check", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("seen", overflow="fold")
    table.add_column("what to do", overflow="fold")
    for check in checks:
        verdict = Text(check.verdict, style=_STYLES[check.verdict])
        table.add_row(check.name, verdict, Text(printable(check.seen)), Text(printable(check.fix)))
    return table


for command in (capture, *(entry.load() for entry in entry_points(group="cachelb.commands.doctor"))):
    doctor.add_command(command)
