"""`cachelb demo`: policies compared, without a GPU or a file."""

from __future__ import annotations

import click

from cachelb.cli.options import NOT_NEGATIVE, POSITIVE, THREADS, json_option, option, policy_option, run
from cachelb.cli.table import print_comparison, seconds
from cachelb.sim.comparison import Comparison
from cachelb.sim.fleet import FleetSpec
from cachelb.sim.metrics import Metrics
from cachelb.sim.workloads import Workload, build

_POLICY, _YARDSTICK = "adaptive", "round-robin"
_POLICIES = "adaptive,prefill-times-batch,overlap-cost,sticky-until-saturated,cache-aware,least-loaded,round-robin"
# Arrivals per second, of sessions where turns follow each other. No policy is overloaded, which would flatter the best.
_RATES = {"chat": 1.0, "agent": 0.4, "rag": 6.0}
_EXAMPLES = """\b
Examples:
  cachelb demo
  cachelb demo --policy all
  cachelb demo --fleet 16xa30 --speed 2
  cachelb demo --seed 7 --json
"""


@click.command(epilog=_EXAMPLES)
@policy_option(_POLICIES)
@option("--requests", 2000, click.IntRange(min=3), "Requests to generate.")
@click.option(
    "--fleet", default="8xa100-80", show_default=True, metavar="GROUPS", help="Workers, as `cachelb replay` has."
)
@option("--speed", 1.0, POSITIVE, "How much faster.")
@option("--seed", 0, NOT_NEGATIVE, "Seed of workload and policies.")
@json_option()
def demo(*, names: list[str], requests: int, fleet: str, speed: float, seed: int, as_json: bool) -> None:
    """Run policies over a generated workload on a simulated fleet.

    The workload mixes multi-turn chats, agents with long tool descriptions and questions behind
    retrieved documents. It takes a few seconds and needs no file and no GPU. `cachelb replay` takes
    workloads of your own.
    """
    try:
        workers = FleetSpec.parse(fleet)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--fleet") from error
    try:
        workload = _mixed(requests, seed).speed_up(speed)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    comparison = run(workload, workers, names, as_json=as_json, seeds=(seed,), threads=THREADS)
    if as_json:
        click.echo(comparison.to_json())
    else:
        print_comparison(comparison)
        if {_POLICY, _YARDSTICK} <= set(names):
            click.echo(_verdict(comparison))


def _mixed(requests: int, seed: int) -> Workload:
    """Generate the kinds of traffic in equal parts, each from a seed of its own."""
    parts = [
        build(name, seed=seed * len(_RATES) + nth, rate=rate, count=(requests + nth) // len(_RATES))
        for nth, (name, rate) in enumerate(_RATES.items())
    ]
    return Workload.concat(parts, name="chat + agent + rag")


def _verdict(comparison: Comparison) -> str:
    """Summarise the gain of the default policy in one line."""
    ours, usual = (_cell(comparison, policy) for policy in (_POLICY, _YARDSTICK))
    return (
        f"{_POLICY} finds {ours.hit_rate:.0%} of the prompt tokens cached ({_YARDSTICK}: {usual.hit_rate:.0%}): "
        f"the first token comes after {seconds(ours.ttft_s.mean)} in the mean instead of {seconds(usual.ttft_s.mean)}, "
        f"after {seconds(ours.ttft_s.p99)} instead of {seconds(usual.ttft_s.p99)} at the 99th percentile. "
        "The order of the others changes with traffic and load: replay yours."
    )


def _cell(comparison: Comparison, policy: str) -> Metrics:
    """Return the figures of a policy."""
    return next(cell.runs[0].metrics for cell in comparison.cells if cell.policy == policy)
