"""`cachelb explain --body`: what a router reads of request bodies, and where their prompts differ."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click
from rich.text import Text

from cachelb.bodies import RequestBodies
from cachelb.cli.errors import shown
from cachelb.cli.options import COUNT, option
from cachelb.cli.table import console, new_table, printable
from cachelb.errors import BodyError
from cachelb_lab.descriptions import describe_body

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cachelb.cli.options import Command
    from cachelb_lab.descriptions import BodyDescription, SharedPrompt

_MOST_BODIES: Final = 2
_PATH: Final = "/v1/chat/completions"
_PLACES: Final = {
    "kind": "they are of different kinds, or one has no prompt",
    "model": "the model; prompts of different models are kept apart",
    "adapter": "the adapter; prompts of different adapters are kept apart",
    "salt": "the salt; prompts of different salts are kept apart",
    "media": "the media beside the prompt",
    "options": "options of the template, or system messages among the others",
    "tools": "the tools",
    "system": "the system text",
    "prompt": "the text or token ids",
}


def body_options(command: Command) -> Command:
    """Give a command the options of request bodies, which it hands to `explain_bodies`."""
    for add in reversed(_OPTIONS):
        command = add(command)
    return command


def explain_bodies(
    files: Sequence[Path],
    *,
    path: str,
    headers: Sequence[str],
    template: Path | None,
    block_size: int,
    as_json: bool,
    **profile: Any,  # noqa: ANN401 - options of RequestBodies; None where not given
) -> None:
    """Print what is read of one body, or of two and what they share."""
    if len(files) > _MOST_BODIES:
        raise click.UsageError("--body may be given twice, to compare two bodies")
    names = list(map(str, files))
    if names.count("-") > 1:
        raise click.UsageError("only one --body can be standard input")
    known = {} if template is None else _probed(template, profile.get("match") or "likely")
    known |= {name: value for name, value in profile.items() if value is not None}
    settings = RequestBodies(**known)
    pairs = [_header(header) for header in headers]
    bodies = [_described(file, path, pairs, settings) for file in names]
    shared = bodies[0].shared_with(bodies[1], block_size=block_size) if len(bodies) > 1 else None
    if as_json:
        click.echo(json.dumps(_document(names, bodies, known, shared), indent=2))
    else:
        _print(names, bodies, known, shared)


def _probed(file: Path, match: Literal["certain", "likely"]) -> dict[str, Any]:
    """Find where the template of a file puts things."""
    from cachelb.tokenizers.templates import ChatTemplates
    from cachelb_lab.probe import probe_template

    bad = shown(OSError, ValueError, by=partial(click.BadParameter, param_hint="--template"))
    with bad, shown(ModuleNotFoundError):
        return probe_template(ChatTemplates.from_file(file), match=match)


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise click.BadParameter(f"must be NAME:VALUE, got {text!r}", param_hint="--header")
    return name.strip(), value.strip()


def _described(file: str, path: str, headers: list[tuple[str, str]], settings: RequestBodies) -> BodyDescription:
    with click.open_file(file, "rb") as opened:
        body = opened.read(settings.max_bytes + 1)
    with shown(BodyError, by=lambda text: click.ClickException(f"{file}: {text}; it would be routed by load")):
        return describe_body(body, path=path, headers=headers, bodies=settings)


def _document(
    names: Sequence[str], bodies: Sequence[BodyDescription], known: Mapping[str, Any], shared: SharedPrompt | None
) -> dict[str, Any]:
    rows = [{"file": name, **body.as_dict()} for name, body in zip(names, bodies, strict=True)]
    document: dict[str, Any] = {"bodies": rows, "engines": dict(known)}
    if shared is not None:
        document["shared"] = {name: getattr(shared, name) for name in ("blocks", "tokens", "share", "where", "message")}
    return document


def _print(
    names: Sequence[str], bodies: Sequence[BodyDescription], known: Mapping[str, Any], shared: SharedPrompt | None
) -> None:
    table = new_table("Request bodies", ["read", *map(printable, names)], [])
    rows = [body.as_dict() for body in bodies]
    for name in rows[0]:
        table.add_row(name.replace("_", " "), *(Text(_shown(row[name])) for row in rows))
    out = console()
    out.print(table)
    for name, value in known.items():
        click.echo(f"engines: {name} = {value}")
    if any(row["kind"] == "unknown" for row in rows):
        click.echo("no prompt was found: --path must be the path of the request")
    if shared is not None:
        click.echo(_sentence(shared))


def _shown(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case _:
            return printable(str(value))


def _sentence(shared: SharedPrompt) -> str:
    """Describe the shared part of two bodies."""
    if shared.where is None:
        return f"the prompts are the same: {shared.blocks:,} whole blocks, {shared.tokens:,} tokens"
    place = _PLACES.get(shared.where, f"message {shared.message} of the second")
    amount = f"shared: {shared.blocks:,} blocks, {shared.tokens:,} tokens, {shared.share:.1%} of the second prompt"
    return f"{amount}\nfirst difference: {place}"


_OPTIONS: Final[Sequence[Callable[[Any], Any]]] = (
    click.option(
        "--body",
        "bodies",
        metavar="FILE",
        multiple=True,
        type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
        help="Show what a router reads of a request body; '-' is standard input. Given twice, what both share.",
    ),
    option("--path", _PATH, click.STRING, "With --body: path of the request."),
    option("--header headers", None, "NAME:VALUE", "With --body: header of the request; repeatable.", multiple=True),
    option("--match", None, click.Choice(["likely", "certain"]), "With --body: as in RequestBodies."),
    option("--engine", None, click.Choice(["vllm", "sglang"]), "With --body: as in RequestBodies."),
    option(
        "--tools-place",
        None,
        click.Choice(["after-system", "before-system", "last-user"]),
        "With --body: as in RequestBodies.",
    ),
    click.option(
        "--keeps-reasoning", is_flag=True, default=None, help="With --body: the template renders earlier reasoning."
    ),
    click.option(
        "--template",
        metavar="FILE",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="With --body: chat template in Jinja, or tokenizer_config.json, that is probed for these options.",
    ),
    option("--block-size", 16, COUNT, "With --body: tokens per block of the router."),
)
