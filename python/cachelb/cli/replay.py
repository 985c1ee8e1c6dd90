"""`cachelb replay`: a trace file through several policies."""

from __future__ import annotations

from dataclasses import replace as changed
from itertools import islice
from pathlib import Path

import click

from cachelb import policies
from cachelb.cli.options import echo_json, policy_names, run
from cachelb.cli.table import print_table
from cachelb.errors import TraceError
from cachelb.sim.expand import blocks_per_id
from cachelb.sim.replay import Fleet
from cachelb.sim.traces import MOONCAKE_ID_TOKENS, Request, read_trace

_EXAMPLES = """\b
Examples:
  cachelb replay conversation_trace.jsonl.xz
  cachelb replay trace.jsonl --policy cache-aware,random --workers 8 --kv-tokens 400000
  cachelb replay trace.jsonl.zst --block-size 16 --speed 2 --json > report.json
"""


@click.command(epilog=_EXAMPLES)
@click.argument("trace", type=click.Path(path_type=Path))
@click.option(
    "--policy",
    "names",
    metavar="NAMES",
    callback=policy_names,
    default=",".join(policies.POLICIES),
    show_default=True,
    help="Policies to replay, separated by commas.",
)
@click.option("--workers", type=click.IntRange(min=1), default=8, show_default=True, help="Workers in the fleet.")
@click.option(
    "--kv-tokens",
    type=click.IntRange(min=1),
    default=400_000,
    show_default=True,
    help="Tokens EACH worker can cache; the single-pool bound gets workers x kv-tokens.",
)
@click.option(
    "--block-size",
    type=click.IntRange(min=1),
    default=MOONCAKE_ID_TOKENS,
    show_default=True,
    help=f"Tokens per block; must divide the {MOONCAKE_ID_TOKENS} tokens of a hash id. Only full blocks are cached.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the policies.")
@click.option("--limit", type=click.IntRange(min=1), help="Replay the first rows only.")
@click.option(
    "--speed",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Divide the timestamps: 2 sends requests twice as fast.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table.")
def replay(
    *,
    trace: Path,
    names: list[str],
    workers: int,
    kv_tokens: int,
    block_size: int,
    seed: int,
    limit: int | None,
    speed: float,
    as_json: bool,
) -> None:
    """Replay TRACE through policies on simulated engine caches and compare the hits.

    TRACE is a Mooncake trace: JSON Lines, plain or compressed (.gz, .xz, .zst), one request per
    line with timestamp (ms), input_length, output_length and hash_ids.

    Every worker keeps a least-recently-used block cache. A request occupies its worker for its
    uncached tokens / 8,000 s + its output tokens x 0.02 s. Requests without a session_id get one
    from their first two hash ids, for policies that go by session.
    """
    try:
        blocks_per_id(MOONCAKE_ID_TOKENS, block_size)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--block-size") from error
    try:
        fleet = Fleet(workers, kv_tokens, block_size, MOONCAKE_ID_TOKENS, seed)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--kv-tokens") from error
    report = run(trace.name, _load(trace, limit, speed), names, fleet, as_json=as_json)
    if as_json:
        echo_json(report)
    else:
        print_table(report)


def _load(trace: Path, limit: int | None, speed: float) -> list[Request]:
    """Read a trace in order of arrival, at a speed."""
    if not trace.is_file():
        raise click.BadParameter(
            f"no file {str(trace)!r}; give a Mooncake JSON Lines trace, or run `cachelb demo`, which needs none",
            param_hint="TRACE",
        )
    try:
        requests = list(islice(read_trace(trace), limit))
    except (TraceError, OSError, ModuleNotFoundError) as error:
        raise click.ClickException(str(error)) from error
    if not requests:
        raise click.ClickException(f"{trace} has no rows; a trace has one JSON object per line")
    requests.sort(key=lambda request: request.arrival_s)
    return [changed(request, arrival_s=request.arrival_s / speed) for request in requests]
