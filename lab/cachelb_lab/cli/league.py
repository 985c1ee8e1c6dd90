"""`cachelb league`: how far each policy is from the best, over traces, fleets, loads and faults."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from cachelb.cli.errors import shown
from cachelb.cli.options import COUNT, FILE, NOT_NEGATIVE, admission_option, option
from cachelb.cli.table import console, fitted
from cachelb.common.calls import split_list
from cachelb_lab.cli.options import ALL, policy_option, progress_bar, threads_option
from cachelb_lab.sim.contender import Contender
from cachelb_lab.sim.fleet import DEFAULT_MODEL
from cachelb_lab.sim.league import COMPARED, LOADS, REALISM, League, Standings, Store, as_dict, markdown, play
from cachelb_lab.sim.league.documents import HEADS, group_tables, legend, policy_rows
from cachelb_lab.sim.league.traces import PARTS
from cachelb_lab.sim.workloads import WORKLOADS

if TYPE_CHECKING:
    from cachelb.admission import AdmissionOptions

_POLICIES = (
    "adaptive,adaptive+events,cache-aware,kv-aware,prefill-times-batch(crowding=1),"
    "prefill-times-batch(crowding=1)+events,prefill-times-batch,sticky-until-saturated,overlap-cost,least-loaded,round-robin"
)
_TRACES = ("chat(count=8000)", "agent(count=6000)", "agent(count=6000,loop=closed)", "rag(count=4000)")
_QUICK_TRACES = ("chat(count=4000)", "agent(count=3000)", "agent(count=3000,loop=closed)", "rag(count=2000)")
_FLEET, _QUICK_FLEET = "8xa100-80", "4xl40s"
_QUICK_LOADS = (0.5, 0.85, 1.05)
_LEAST = ("good", "hits", "TTFT p90", "preempted", "session", "unserved", "within 3 %", "TPOT", "E2E")
_SWITCHES = "\n".join(f"  {switch.name:16} {switch.summary}" for switch in REALISM.values())
_EXAMPLES = f"""\b
Examples:
  cachelb league --quick
  cachelb league conversation_trace.jsonl.xz chat --fleet 8xl40s,4xh100+4xl40s --store league.jsonl
  cachelb league chat --policy "adaptive,prefill-times-batch(crowding=1)+events" --realism none,crash
  cachelb league "agents.jsonl.xz(limit=60,loop=closed)" --part develop --loads 0.7,0.95 --seeds 3
  cachelb league chat --loads 0.95,1.2 --admission max_wait_s=1.5 --policy adaptive,"adaptive(max_wait_s=0)"
  cachelb league chat rag --policy all --svg league.svg --markdown > league.md

\b
Realism:
{_SWITCHES}

\b
Generators: {", ".join(WORKLOADS)}
"""


def _numbers(_context: click.Context, _parameter: click.Parameter, value: str | None) -> tuple[float, ...] | None:
    """Read numbers separated by commas."""
    try:
        return None if value is None else tuple(float(part) for part in value.split(","))
    except ValueError as error:
        raise click.BadParameter(f"must be numbers such as 0.5,0.95, got {value!r}") from error


@click.command(epilog=_EXAMPLES, short_help="Rank policies over traces, fleets and faults.")
@click.argument("traces", nargs=-1)
@click.option("--quick", is_flag=True, help="Small generated traces, one fleet, three loads: under a minute.")
@policy_option(_POLICIES)
@click.option(
    "--fleet",
    "fleets",
    metavar="FLEETS",
    help=f"Fleets, separated by commas, as in 8xa30,4xh100+4xl40s; {_FLEET}. For hybrid models 8xh100/window=1024*5, "
    "/mamba*3 or /chunk=8192*3.",
)
@click.option("--model", default=DEFAULT_MODEL, show_default=True, help="Model that all fleets serve.")
@click.option(
    "--loads",
    metavar="SHARES",
    callback=_numbers,
    help=f"Shares of what the best reference policy keeps up with; {','.join(map(str, LOADS))}.",
)
@option(
    "--realism",
    "none",
    "NAMES",
    f"Faults and delays, each a cell of its own, separated by commas; {ALL!r} for every one. See below.",
)
@option("--seed", 1, NOT_NEGATIVE, "The first seed.")
@option(
    "--seeds",
    None,
    COUNT,
    "Cells per setting, each with the next seed, of generators, sessions and policies; 3, or 1 with --quick.",
)
@option(
    "--part", "all", click.Choice(PARTS), "Half of each trace: by a hash of the session, or by time where it has none."
)
@admission_option("Hold and refuse requests before every policy, as NAME(max_wait_s=1.5) does before one")
@option("--store", None, FILE, "Keep runs in this file, and run only what it lacks.")
@click.option("--again", metavar="NAMES", help="Policies whose runs in the store are made again: they have changed.")
@threads_option()
@option("--svg", None, FILE, "Draw the ratios of all cells, as .svg, .png or .pdf. Needs cachelb-lab[plots].")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown instead of the tables.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with the figures of every run.")
def league(
    *,
    traces: tuple[str, ...],
    quick: bool,
    names: list[str],
    fleets: str | None,
    model: str,
    loads: tuple[float, ...] | None,
    realism: str,
    seed: int,
    seeds: int | None,
    part: str,
    admission: AdmissionOptions | None,
    store: Path | None,
    again: str | None,
    threads: int,
    svg: Path | None,
    as_markdown: bool,
    as_json: bool,
) -> None:
    """Rank policies over TRACES, fleets, loads and faults by how far they are from the best of each cell.

    TRACES are generators or files, as `cachelb replay` takes them, with options in parentheses: COUNT and others of a
    generator, LIMIT of a file, LOOP=closed for turns that wait for the answer before, JITTER in seconds.

    The capacity of a fleet is found for each trace first; loads are shares of it. Then every policy runs in every
    cell. Equal settings give equal figures, with any --threads.
    """
    if as_json and as_markdown:
        raise click.UsageError("--json and --markdown exclude each other")
    settings = League(
        traces=traces or (_QUICK_TRACES if quick else _TRACES),
        fleets=split_list(fleets or (_QUICK_FLEET if quick else _FLEET)),
        loads=loads or (_QUICK_LOADS if quick else LOADS),
        realism=list(REALISM) if realism == ALL else split_list(realism),
        seeds=range(seed, seed + (seeds or (1 if quick else 3))),
        part=part,
        model=model,
    )
    if admission is not None:
        names = [str(Contender.parse(name).admitted(admission)) for name in names]
    if store is None and again is not None:
        raise click.UsageError("--again is for the runs of a --store")
    with shown(ValueError, OSError, by=partial(click.BadParameter, param_hint="--store")):
        kept = Store(store)
        if again is not None:
            kept.forget(split_list(again))
    with progress_bar("simulating", quiet=as_json) as progress:
        found = play(settings, names, store=kept, threads=threads, progress=progress)
    if svg is not None:
        from cachelb_lab.plots import write_ratios

        with shown(OSError, ValueError, ModuleNotFoundError):
            write_ratios(svg, found)
    if as_json:
        click.echo(json.dumps(as_dict(found), indent=2, allow_nan=False))
    elif as_markdown:
        click.echo(markdown(found), nl=False)
    else:
        _print(found)


def _print(standings: Standings) -> None:
    """Print the table of all cells, and those of groups."""
    out = console()
    out.print(fitted(out, partial(_whole, standings), _LEAST))
    for by, groups, rows in group_tables(standings):
        out.print(_table(f"{COMPARED[0].title} by {by}", groups, rows))


def _whole(standings: Standings, dropped: Sequence[str]) -> Table:
    """Build the table of all cells, without some of the least columns."""
    kept = [at for at, head in enumerate(HEADS) if head not in dropped]
    heads, *rows = ([row[at] for at in kept] for row in (HEADS, *policy_rows(standings)))
    return _table("all cells", heads[1:], rows, caption="\n".join(legend(standings)))


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], caption: str | None = None) -> Table:
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    table.add_column("policy", no_wrap=True)
    for head in heads:
        table.add_column(head.replace(" ", "\n", 1), justify="right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table
