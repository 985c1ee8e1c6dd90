"""`cachelb demo`: policies compared, without a GPU or a file."""

from __future__ import annotations

from functools import partial

import click

from cachelb.cli.errors import shown
from cachelb.cli.options import COUNT, NOT_NEGATIVE, POSITIVE, json_option, option
from cachelb_lab.cli.options import THREADS, policy_option, run
from cachelb_lab.cli.table import over_seeds, print_comparison, seconds
from cachelb_lab.sim.experiments.comparison import Cell, Comparison
from cachelb_lab.sim.fleet import FleetSpec
from cachelb_lab.sim.workloads import Workload, build

_YARDSTICK = "round-robin"
_POLICIES = "adaptive,prefill-times-batch,overlap-cost,sticky-until-saturated,cache-aware,least-loaded,round-robin"
# Arrivals per second, of sessions where turns follow each other. No policy is overloaded, which would flatter the best.
_RATES = {"chat": 1.0, "agent": 0.4, "rag": 6.0}
_OTHERS = {"median": "ttft_s.p50", "P90": "ttft_s.p90", "P99": "ttft_s.p99", "TPOT": "tpot_s.mean", "E2E": "e2e_s.mean"}
_EXAMPLES = """\b
Examples:
  cachelb demo
  cachelb demo --policy all
  cachelb demo --fleet 16xa30 --speed 2
  cachelb demo --seed 7 --json
"""


@click.command(epilog=_EXAMPLES, short_help="Run policies on a generated workload.")
@policy_option(_POLICIES)
@option("--requests", 2000, click.IntRange(min=3), "Requests to generate.")
@option("--fleet", "8xa100-80", "GROUPS", "Workers, as `cachelb replay` has.")
@option("--speed", 1.0, POSITIVE, "How much faster.")
@option("--seed", 0, NOT_NEGATIVE, "The first seed of workload and policies.")
@option("--seeds", 3, COUNT, "Runs per policy, each with the next seed.")
@json_option()
def demo(*, names: list[str], requests: int, fleet: str, speed: float, seed: int, seeds: int, as_json: bool) -> None:
    """Run policies over a generated workload on a simulated fleet.

    The workload mixes multi-turn chats, agents with long tool descriptions and questions behind
    retrieved documents. It takes a few seconds and needs no file and no GPU. `cachelb replay` takes
    workloads of your own.
    """
    with shown(ValueError, by=partial(click.BadParameter, param_hint="--fleet")):
        workers = FleetSpec.parse(fleet)

    def workload(seed: int) -> Workload:
        return _mixed(requests, seed).speed_up(speed)

    comparison = run(workload, workers, names, as_json=as_json, seeds=range(seed, seed + seeds), threads=THREADS)
    if as_json:
        click.echo(comparison.to_json())
    else:
        print_comparison(comparison)
        click.echo(_verdict(comparison))


def _mixed(requests: int, seed: int) -> Workload:
    """Generate the kinds of traffic in equal parts, each from a seed of its own."""
    parts = [
        build(name, seed=seed * len(_RATES) + nth, rate=rate, count=(requests + nth) // len(_RATES))
        for nth, (name, rate) in enumerate(_RATES.items())
    ]
    return Workload.concat(parts, name="chat + agent + rag")


def _verdict(comparison: Comparison) -> str:
    """Name the first row in one line, and what it gains over round-robin."""
    cells = {cell.policy: cell for cell in comparison.cells}
    best = min(comparison.cells, key=over_seeds)
    parts = [f"{best.policy} is first: the mean time to the first token is {_ttft(best)}"]
    usual = cells.get(_YARDSTICK, best)
    if usual is not best:
        hits = (f"{cell.spreads['hit_rate'].mean:.0%}" for cell in (best, usual))
        parts.append(f"{_YARDSTICK}'s {_ttft(usual)}; {' and '.join(hits)} of the prompt tokens were cached")
    firsts = (
        f"by {title} {min(cells.values(), key=partial(over_seeds, key=key)).policy}" for title, key in _OTHERS.items()
    )
    return f"{', '.join(parts)}. First {', '.join(firsts)}. The order changes with traffic and load: replay yours."


def _ttft(cell: Cell) -> str:
    """Return the mean TTFT, and its range over several seeds."""
    spread = cell.spreads["ttft_s.mean"]
    if len(cell.runs) == 1:
        return seconds(spread.mean)
    return f"{seconds(spread.mean)} ({seconds(spread.low)} to {seconds(spread.high)} over {len(cell.runs)} seeds)"
