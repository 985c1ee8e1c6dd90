"""`cachelb bench agentic`: sessions of coding agents, by policy."""

from __future__ import annotations

import click

from cachelb_lab.cli.replay import replay

_DEFAULTS = {
    "workload": "coding-agent",
    "names": "adaptive,cache-aware,sticky-until-saturated,overlap-cost+events,round-robin",
    "fleet": "8xh100",
    "within": 1.5,
    "seeds": 3,
}
_EXAMPLES = """\b
Examples:
  cachelb bench agentic
  cachelb bench agentic --rate 0.03 --fleet 8xh100+8xa100-80
  cachelb bench agentic agent_sessions.jsonl.xz --speed 4 --policy adaptive,adaptive+events
  cachelb bench agentic --seeds 1 --json > agents.json
"""
_HELP = """Measure how policies serve sessions of agents on a simulated fleet.

It is `cachelb replay` of WORKLOAD with other defaults: a generator with sessions (coding-agent), or a file of recorded
sessions (docs/replay.md). Each turn follows the answer before it. The engine time of a session, the sum of its
requests' times without the pauses between them, is compared with that of the same session on an idle fleet.
"""


@click.group(short_help="Measure policies on simulated fleets.")
def bench() -> None:
    """Measure policies on simulated fleets; `python -m benches.structures` in a checkout times the structures."""


bench.add_command(
    click.Command(
        "agentic",
        context_settings={"default_map": _DEFAULTS},
        callback=replay.callback,
        params=replay.params,
        help=_HELP,
        epilog=_EXAMPLES,
    )
)
