"""`cachelb demo`: what a policy is worth, with no GPU and no file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cachelb import policies
from cachelb.cli.options import echo_json, run
from cachelb.cli.table import print_table
from cachelb.sim.replay import Fleet
from cachelb.sim.workloads import MIXED_ID_TOKENS, mixed_workload

if TYPE_CHECKING:
    from cachelb.sim.report import Report

_BLOCK_SIZE = 16
_YARDSTICK = "round-robin"
_EXAMPLES = """\b
Examples:
  cachelb demo
  cachelb demo --workers 4 --kv-tokens 100000
  cachelb demo --seed 7 --json
"""


@click.command(epilog=_EXAMPLES)
@click.option("--requests", type=click.IntRange(min=1), default=3000, show_default=True, help="Requests to generate.")
@click.option("--workers", type=click.IntRange(min=1), default=8, show_default=True, help="Workers in the fleet.")
@click.option(
    "--kv-tokens",
    type=click.IntRange(min=_BLOCK_SIZE),
    default=50_000,
    show_default=True,
    help="Tokens EACH worker can cache.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the workload and the policies."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table.")
def demo(*, requests: int, workers: int, kv_tokens: int, seed: int, as_json: bool) -> None:
    """Run every policy over a generated workload on a simulated fleet.

    The workload mixes multi-turn chats, agents with long tool descriptions and single calls with
    shared system prompts. It takes a few seconds and needs no file and no GPU.
    """
    fleet = Fleet(workers, kv_tokens, _BLOCK_SIZE, MIXED_ID_TOKENS, seed)
    report = run("mixed workload", mixed_workload(requests, seed=seed), list(policies.POLICIES), fleet, as_json=as_json)
    if as_json:
        echo_json(report)
    else:
        print_table(report)
        click.echo(_verdict(report))


def _verdict(report: Report) -> str:
    """Say in one line what the best policy gains."""
    best = max(report.policies, key=lambda result: result.hits.hit_tokens)
    usual = next(result for result in report.policies if result.policy == _YARDSTICK)
    computed, usually_computed = (result.hits.prompt_tokens - result.hits.hit_tokens for result in (best, usual))
    return (
        f"{best.policy} finds {best.hits.token_rate:.0%} of the prompt tokens cached ({usual.policy}: "
        f"{usual.hits.token_rate:.0%}), so engines prefill {usually_computed / max(1, computed):.1f}x fewer tokens; "
        f"its busiest worker serves {best.requests_max_over_mean:.2f}x the mean."
    )
