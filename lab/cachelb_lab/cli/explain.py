"""`cachelb explain`: why hits were lost, from decision records; what is read of request bodies."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.table import Table
from rich.text import Text

from cachelb.cli.errors import shown
from cachelb.cli.options import COUNT, json_option, option
from cachelb.cli.table import console, new_table, printable
from cachelb.errors import did_you_mean
from cachelb.records import RecordFiles, read_records
from cachelb.types import DecisionRecord
from cachelb_lab.analysis import Analysis, analyse
from cachelb_lab.cli.explain_body import body_options, explain_bodies

_EXAMPLES = """\b
Examples:
  cachelb explain decisions.jsonl
  cachelb explain decisions.jsonl --worker http://gpu0:8000 --top 5
  cachelb explain decisions-*.jsonl --json
  cachelb explain --body request.json
  cachelb explain --body turn-1.json --body turn-2.json --engine vllm
  cachelb explain --body - --path /v1/messages --header x-session-id:chat-1 < request.json
  cachelb explain --body turn-1.json --body turn-2.json --template tokenizer_config.json
"""


@click.command(epilog=_EXAMPLES, short_help="Rank why prompt tokens missed the caches.")
@click.argument("files", metavar="[FILE...]", nargs=-1, type=click.Path(path_type=Path))
@option("--top", 10, COUNT, "Causes to show.")
@click.option("--worker", "workers", metavar="KEY", multiple=True, help="Only decisions for this worker; repeatable.")
@body_options
@json_option("the tables")
@click.pass_context
def explain(
    context: click.Context,
    /,
    *,
    files: tuple[Path, ...],
    top: int,
    workers: tuple[str, ...],
    bodies: tuple[Path, ...],
    as_json: bool,
    **body_settings: Any,  # noqa: ANN401 - those of `explain_bodies`
) -> None:
    """Rank why prompt tokens were not served from a cache, from the decision records in FILE; or read request bodies.

    FILE is what cachelb.records.JsonlRecords writes; the older files that rotation left beside it (FILE.1, FILE.2) are
    read too. Every token of a prompt is counted once: no candidate held it (prompt -> best), the picked worker did not
    hold it (best -> selected), or its engine did not have it although the router predicted it (selected -> engine).

    With --body, FILE is not needed: the table shows what a router reads of a request, and of two requests how much of
    their prompts is the same to it, and where they differ first.
    """
    _check_form(context, files, bodies)
    if bodies:
        explain_bodies(bodies, as_json=as_json, **body_settings)
        return
    found = _find(files)
    keys: set[str] = set()
    with shown(OSError):
        analysis = analyse(_all(found, keys), frozenset(workers))
    for worker in workers:
        if worker not in keys:
            raise click.BadParameter(f"no decision for {worker!r}{did_you_mean(worker, keys)}", param_hint="--worker")
    lines = sum(each.lines for each in found)
    bad = sum(each.bad for each in found)
    lost = sum(each.lost for each in found)
    named = [line for each in found for line in each.bad_lines]
    if not keys:
        raise click.ClickException(f"no decision records in {lines} lines{_first(named)}")
    if as_json:
        document: dict[str, Any] = analysis.as_dict()
        document["losses"] = document["losses"][:top]
        document |= {"lines": lines, "bad_lines": bad, "missing_records": lost, "problems": list(map(str, named))}
        click.echo(json.dumps(document, indent=2))
        return
    _print(analysis, top)
    if lost:
        click.echo(f"{lost:,} more requests were not recorded: they came too fast, or the file could not be written")
    if bad:
        click.echo(f"{bad:,} of {lines:,} lines are no records{_first(named)}", err=True)


def _check_form(context: click.Context, files: Sequence[Path], bodies: Sequence[Path]) -> None:
    """Refuse both forms at once, neither, and options of the other form."""
    if bool(files) == bool(bodies):
        raise click.UsageError("give either FILE with decision records, or --body with a request body")
    of_records = {"top", "workers"}
    for parameter in context.command.params:
        name = parameter.name or ""
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if given and name not in {"files", "bodies", "as_json"} and (name in of_records) == bool(bodies):
            raise click.UsageError(f"{parameter.opts[0]} goes with {'FILE' if bodies else '--body'} only")


def _find(files: Sequence[Path]) -> list[RecordFiles]:
    """Find the files and the older ones beside them, each once."""
    found = []
    given = set(files)
    for file in files:
        try:
            records = read_records(file)
        except OSError as error:
            raise click.BadParameter(
                f"no file {str(file)!r}; attach cachelb.records.JsonlRecords to a router to write one",
                param_hint="FILE",
            ) from error
        records.files = tuple(each for each in records.files if each == file or each not in given)
        given.update(records.files)
        found.append(records)
    return found


def _all(found: Sequence[RecordFiles], keys: set[str]) -> Iterator[DecisionRecord]:
    """Read every record, and note the workers."""
    for records in found:
        for record in records.decisions():
            keys.add(record.key)
            yield record


def _first(named: Sequence[object]) -> str:
    """Name the first bad line."""
    return f", first {named[0]}" if named else ""


def _print(analysis: Analysis, top: int) -> None:
    """Print everything for people."""
    out = console()
    out.print(_funnel(analysis))
    out.print(losses_table(analysis, top))
    if analysis.reported:
        out.print(_disagreement(analysis))
    else:
        out.print("No engine reported cached tokens: pass cached_tokens= to on_complete() to see the last step.")
    if analysis.shadows:
        out.print(_shadows(analysis))
    if analysis.left_out:
        reasons = ", ".join(f"{count:,} {why}" for why, count in analysis.left_out.items())
        out.print(Text(f"not counted: {printable(reasons)}", style="dim"))


def _funnel(analysis: Analysis) -> Table:
    """Show the steps from the prompt to the engine's cache."""
    table = new_table(f"Token funnel of {analysis.requests:,} requests", ["step"], ["tokens", "of prompt"])
    steps = [
        ("prompt", analysis.prompt_tokens),
        ("held by the best candidate", analysis.best_matched_tokens),
        ("held by the picked worker", analysis.selected_matched_tokens),
    ]
    if analysis.selected_held_tokens > analysis.selected_matched_tokens:
        steps.insert(2, ("held there for full attention", analysis.selected_held_tokens))
    if analysis.selected_shared_tokens:
        steps.append(("of these, in the shared cache", analysis.selected_shared_tokens))
    if analysis.selected_pulled_tokens:
        steps.append(("further ones, copied from peers", analysis.selected_pulled_tokens))
    if analysis.reported:
        steps.append(("cached by its engine", analysis.engine_cached_tokens))
    for name, tokens in steps:
        table.add_row(name, f"{tokens:,}", _share(tokens, analysis.prompt_tokens))
    return table


def losses_table(analysis: Analysis, top: int) -> Table:
    """Rank the losses."""
    table = new_table("Lost tokens, the most first", ["step", "cause", "look at"], ["tokens", "of prompt", "requests"])
    for loss in analysis.losses[:top]:
        numbers = (f"{loss.tokens:,}", _share(loss.tokens, analysis.prompt_tokens), f"{loss.requests:,}")
        table.add_row(loss.step, Text(printable(loss.cause)), loss.advice, *numbers)
    return table


def _disagreement(analysis: Analysis) -> Table:
    """Show where router and engines disagree."""
    numbers = ["requests", "predicted", "reported", "engine had less", "engine had more"]
    table = new_table("Router and engines", ["worker"], numbers)
    for key, worker in analysis.workers.items():
        believed = _share(worker.matched_tokens, worker.prompt_tokens)
        reported = _share(worker.cached_tokens, worker.prompt_tokens)
        counts = (f"{worker.missing_tokens:,}", f"{worker.surplus_tokens:,}")
        table.add_row(Text(printable(key)), f"{worker.requests:,}", believed, reported, *counts)
    return table


def _shadows(analysis: Analysis) -> Table:
    """Compare the shadow policies."""
    numbers = ["decisions", "agreed", "tokens held by its picks", "by the router's"]
    table = new_table("Shadow policies", ["policy"], numbers)
    for policy, shadow in analysis.shadows.items():
        agreed = _share(shadow.agreed, shadow.decisions)
        held = (f"{shadow.matched_tokens:,}", f"{shadow.first_matched_tokens:,}")
        table.add_row(Text(printable(policy)), f"{shadow.decisions:,}", agreed, *held)
    return table


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"
