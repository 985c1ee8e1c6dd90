"""How much of the prompts of coding agents a reader of request bodies finds, over a folder of chat templates.

Transcripts of our own, in the shapes of today's agents, are turned into chats as vLLM does and rendered by each
template. "True" is what a prompt as rendered shares with the best earlier request; "found" the part of it that the
reader claims; "false" what it claims beyond it, in parts of the prompt. Both by bytes. A cell is one agent with one
template; agents that a template refuses are left out.

Examples:
    python -m benches.templates ~/templates
    python -m benches.templates ~/templates --cells --reader vllm
    python -m benches.templates ~/templates --only qwen --agents claude-reminders,codex
    python -m benches.templates ~/templates --unnamed
    python -m benches.templates ~/templates --layouts
    python -m benches.templates ~/templates --learn usual --learn half-cut
    python -m benches.templates ~/templates --starts 150
    python -m benches.templates ~/templates --fuzz 500
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benches.templates.agents import NAMES, make_agents
from benches.templates.engine import Engine
from benches.templates.learning import REPORTS
from benches.templates.readers import READERS
from benches.templates.runs import Given, run_fuzz, run_layouts, run_learning, run_readers, run_starts


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.templates",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="folder of chat templates, *.jinja")
    parser.add_argument("--only", default="", metavar="TEXT", help="templates whose name contains this")
    parser.add_argument("--agents", type=_names, default=NAMES, help=f"separated by commas, of {', '.join(NAMES)}")
    parser.add_argument("--reader", action="append", choices=READERS, help="configuration of the reader; repeatable")
    parser.add_argument("--seed", type=int, default=1, help="of transcripts, their order and reports")
    parser.add_argument("--cells", action="store_true", help="print every cell")
    parser.add_argument(
        "--unnamed", action="store_true", help='call every model "m"; otherwise as the file of its template'
    )
    parser.add_argument(
        "--gathers", action="store_true", help="move developer messages to the front, as vLLM does from 0.33"
    )
    parser.add_argument(
        "--keeps-line", action="store_true", help="keep the billing line, as some versions of SGLang do"
    )
    parser.add_argument("--layouts", action="store_true", help="try all layouts with each template instead")
    parser.add_argument(
        "--learn", action="append", choices=REPORTS, help="route with reports of cached tokens instead; repeatable"
    )
    parser.add_argument(
        "--starts", type=int, metavar="N", help="begin with the layouts of other models, for N answers, instead"
    )
    parser.add_argument(
        "--fuzz", type=int, metavar="N", help="compare N random pairs with each probed template instead"
    )
    given = parser.parse_args()
    files = [file for file in sorted(given.folder.glob("*.jinja")) if given.only.lower() in file.stem.lower()]
    if not files:
        parser.error(f"no *.jinja in {given.folder} has {given.only!r} in its name")
    options = {"names": not given.unnamed, "gathers": given.gathers, "keeps_line": given.keeps_line}
    engines = [Engine(file, **options) for file in files]
    agents = make_agents(given.agents, seed=given.seed)
    print(
        f"{len(engines)} templates, {len(agents)} agents, {sum(len(agent.requests()) for agent in agents)} requests, "
        f"seed {given.seed}",
        file=sys.stderr,
    )
    chosen = Given(engines, agents, given.reader or list(READERS), seed=given.seed, cells=given.cells)
    if given.fuzz is not None:
        return run_fuzz(chosen, given.fuzz)
    if given.starts is not None:
        return run_starts(chosen, given.starts)
    if given.learn:
        return run_learning(chosen, given.learn)
    return run_layouts(chosen) if given.layouts else run_readers(chosen)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := [name for name in names if name not in NAMES]:
        raise argparse.ArgumentTypeError(f"no agent is called {unknown[0]!r}")
    return names


if __name__ == "__main__":
    sys.exit(main())
