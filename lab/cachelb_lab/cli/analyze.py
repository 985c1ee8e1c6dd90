"""`cachelb doctor analyze`: the ladder of hit rates of a capture, causes of losses, other policies on its requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from cachelb.cli.errors import shown
from cachelb.cli.options import COUNT, json_option, option
from cachelb.cli.table import console, new_table, printable
from cachelb.errors import TraceError
from cachelb_lab.cli.explain import losses_table
from cachelb_lab.cli.options import policy_option, progress_bar, threads_option
from cachelb_lab.sim.experiments.ladder import DEFAULT_GPU, climb, fleet_of
from cachelb_lab.sim.fleet import DEFAULT_MODEL
from cachelb_lab.sim.workloads import read_capture

if TYPE_CHECKING:
    from rich.table import Table

    from cachelb_lab.sim.experiments.ladder import Ladder
    from cachelb_lab.sim.workloads import CapturedTraffic

_EXAMPLES = """\b
Examples:
  cachelb doctor analyze capture.jsonl
  cachelb doctor analyze capture.jsonl --policy adaptive,cache-aware --gpu h100 --kv-tokens 400000
  cachelb doctor analyze capture.jsonl --json
"""


@click.command(epilog=_EXAMPLES, short_help="Print how much of a capture could be cached.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@policy_option("adaptive,round-robin")
@option("--kv-tokens", None, COUNT, "Tokens EACH worker can cache; what the capture has by default.")
@click.option("--gpu", metavar="NAME", help=f"Device of the workers; that of the capture, or {DEFAULT_GPU}.")
@click.option("--model", default=DEFAULT_MODEL, show_default=True, help="Model of the cost model, for simulated times.")
@click.option("--only-model", metavar="NAME", help="Only requests for this model of the router.")
@option("--top", 10, COUNT, "Causes to show.")
@threads_option()
@json_option("the tables")
def analyze(
    *,
    file: Path,
    names: list[str],
    kv_tokens: int | None,
    gpu: str | None,
    model: str,
    only_model: str | None,
    top: int,
    threads: int,
    as_json: bool,
) -> None:
    """Print how much of the prompts in FILE could be cached, and where the rest was lost.

    FILE is a capture, of cachelb doctor capture or cachelb.records.Capture. The ladder goes from one cache without
    limit to the reports of the engines; below it are the causes of losses, and policies simulated on these requests,
    the current one among them. Simulated times are those of a cost model: compare them with each other only.
    """
    with shown(ValueError, by=click.UsageError), shown(TraceError, OSError):
        traffic = read_capture(file, model=only_model)
        fleet = fleet_of(traffic, model=model, gpu=gpu, kv_tokens=kv_tokens)
    knows = kv_tokens is not None or (bool(traffic.workers) and all(each.kv_tokens for each in traffic.workers))
    with progress_bar("simulating", quiet=as_json) as progress:
        ladder = climb(traffic, fleet, names, knows_capacity=knows, threads=threads, progress=progress)
    if as_json:
        document = ladder.as_dict()
        document["losses"]["losses"] = document["losses"]["losses"][:top]
        click.echo(json.dumps(document | _facts(traffic), indent=2))
        return
    out = console()
    out.print(_rungs(ladder))
    out.print(losses_table(ladder.losses, top))
    out.print(_policies(ladder))
    for note in _notes(traffic, ladder):
        out.print(Text(printable(note), style="dim"))


def _facts(traffic: CapturedTraffic) -> dict[str, Any]:
    """Describe the file."""
    files, facts = traffic.files, {"ended": traffic.ended, "missing_requests": traffic.missing}
    return {**facts, "lines": files.lines, "bad_lines": files.bad, "problems": list(map(str, files.bad_lines))}


def _rungs(ladder: Ladder) -> Table:
    title = f"Hit rates of {ladder.requests:,} requests, {ladder.prompt_tokens:,} prompt tokens"
    table = new_table(title, ["step", "source", ""], ["hit rate", "lost here"])
    before: float | None = None
    for rung in ladder.rungs:
        rate = rung.hit_rate
        lost = "" if rate is None or before is None else f"{before - rate:.1%}"
        table.add_row(rung.name, rung.basis, Text(printable(rung.detail)), "-" if rate is None else f"{rate:.1%}", lost)
        before = before if rate is None else rate
    return table


def _policies(ladder: Ladder) -> Table:
    title = f"Policies on these requests, SIMULATED on {ladder.fleet}"
    table = new_table(title, ["policy", ""], ["hit rate", "mean TTFT, of the current policy's"])
    for each in ladder.policies:
        ratio = "-" if each.ttft_ratio is None else f"{each.ttft_ratio:.2f}"
        table.add_row(Text(each.policy), "current" if each.is_current else "", f"{each.hit_rate:.1%}", ratio)
    return table


def _notes(traffic: CapturedTraffic, ladder: Ladder) -> list[str]:
    """Name everything that the figures leave out."""
    notes = []
    if traffic.ended != "time":
        notes.append("the file was cut off" if traffic.ended is None else f"the capture ended early: {traffic.ended}")
    if traffic.missing:
        notes.append(f"{traffic.missing:,} requests are missing: unfinished, or they came too fast")
    if traffic.files.bad:
        notes.append(f"{traffic.files.bad:,} lines are damaged, first {traffic.files.bad_lines[0]}")
    if ladder.losses.left_out:
        notes.append("not counted: " + ", ".join(f"{n:,} {why}" for why, n in ladder.losses.left_out.items()))
    if not any(each.is_current for each in ladder.policies):
        notes.append(f"the current policy, {traffic.policy}, cannot be simulated by its name")
    ideal, *_, delivered = ladder.rungs
    if (delivered.hit_rate or 0.0) > (ideal.hit_rate or 0.0):
        notes.append("engines had more than ideal: prefixes from before the capture, and answers in later prompts")
    return notes
