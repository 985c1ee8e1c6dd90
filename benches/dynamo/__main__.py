"""Play traces through Dynamo's simulator with its own router, and through cachelb's with its policies; write a page.

    python -m benches.dynamo                               # all, fifteen minutes on two cores; writes the page
    python -m benches.dynamo --only agents --policy "adaptive+events,cache-aware+events" --out -
    python -m benches.dynamo --again adaptive,adaptive+events      # the policy has changed: make its runs again
    python -m benches.dynamo --dynamo "kv_router(router_track_output_blocks=true)" --out -
    python -m benches.dynamo --trace "tool-agent(count=4000,block_size=64)" --speeds 2,4 --kv-tokens 409600 --out -

The first run downloads Dynamo's wheel into .venv-compare. Every run is kept: a stopped one goes on. Recorded traces are
read under CACHELB_DATA; they are not part of this repository.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benches.compare.environment import install
from benches.dynamo.page import page, standings
from benches.dynamo.play import DYNAMO, KV_TOKENS, Cell, Setting, dynamo_name, play_ours, play_theirs, unequal

from cachelb.common.calls import split_list
from cachelb_lab.plots import write_ratios
from cachelb_lab.sim.league import Store

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "maintainers"
DATA = Path(os.environ.get("CACHELB_DATA", ROOT.parent / "shared")) / "traces"
SETTINGS = {
    "conversation": Setting(
        f"{DATA}/mooncake/conversation_trace.jsonl.xz(block_size=64)", kv_tokens=6_400 * 64, loads=(1.0, 2.0, 4.0)
    ),
    # Eight times as fast, Dynamo's router is about to fall behind.
    "agents": Setting(
        f"{DATA}/agents/agent_sessions_develop.jsonl.xz(block_size=64,limit=60)", unit=8.0, loads=(0.5, 1.0, 1.25, 2.0)
    ),
    # The memory of an H100 beside Llama-3-8B.
    "sessions": Setting(
        "coding-agent(rate=0.02,count=3000,block_size=64,loop=closed)", kv_tokens=7_153 * 64, loads=(1.0, 2.0, 4.0)
    ),
}
CONTENDERS = (
    *("adaptive", "adaptive+events", "cache-aware", "cache-aware+events"),
    *("prefill-times-batch(crowding=1)+events", "estimated-ttft+events", "overlap-cost+events", "round-robin"),
)
ROUND_ROBIN = ("round-robin", "round_robin")


def main() -> None:
    """Run missing cells, then write the page."""
    given = _arguments()
    if given.trace:
        loads = tuple(float(speed) for speed in given.speeds.split(","))
        settings = [Setting(given.trace, kv_tokens=given.kv_tokens, loads=loads)]
    else:
        settings = [SETTINGS[name] for name in (given.only or ",".join(SETTINGS)).split(",")]
    install(DYNAMO)
    store = Store(given.store)
    if given.again:
        store.forget(split_list(given.again))
    rows, checks = [], []
    begin_s = time.monotonic()
    for cell in (Cell(setting, load) for setting in settings for load in setting.loads):
        facts = cell.facts()
        _tell(begin_s, f"{facts['trace']} {facts['load']}: {len(cell.workload)} requests")
        checks.append(_check(store, cell))
        theirs = play_theirs(store, cell, given.dynamo, given.runs)
        _tell(begin_s, f"  {theirs['policy']}")
        rows.append(theirs)
        for policy in split_list(given.policy):
            rows.append(play_ours(store, cell, policy, range(1, given.seeds + 1)))
            _tell(begin_s, f"  {policy}")
    text = page(rows, dynamo_name(given.dynamo), checks, _machine())
    if given.out == "-":
        print(text)
    else:
        Path(given.out).write_text(text, encoding="utf-8")
        write_ratios(given.svg, standings(rows))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="settings, by commas: " + ", ".join(SETTINGS))
    parser.add_argument("--trace", help="another trace instead, as cachelb league takes it")
    parser.add_argument("--speeds", default="1", help="of --trace: what its arrival times are divided by, by commas")
    parser.add_argument("--kv-tokens", type=int, default=KV_TOKENS, help="of --trace: tokens a worker's cache holds")
    parser.add_argument("--policy", default=",".join(CONTENDERS))
    parser.add_argument("--dynamo", default="kv_router", help="its router; options of KvRouterConfig in parentheses")
    parser.add_argument("--runs", type=int, default=5, help="of Dynamo, which draws without a seed")
    parser.add_argument("--seeds", type=int, default=3, help="of cachelb")
    parser.add_argument("--again", default="", help="policies whose runs are made again")
    parser.add_argument("--store", type=Path, default=ROOT / "bench-results" / "dynamo.jsonl")
    parser.add_argument("--out", default=str(PAGES / "dynamo.md"), help="Markdown; - for standard output")
    parser.add_argument("--svg", type=Path, default=PAGES / "images" / "dynamo.svg")
    return parser.parse_args()


def _check(store: Store, cell: Cell) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run round robin in both simulators, and refuse engines that are not equal."""
    ours, theirs = ROUND_ROBIN
    cell = cell.by_the_clock
    both = play_ours(store, cell, ours, [1]), play_theirs(store, cell, theirs, 1)
    differences: Sequence[str] = unequal(*both)
    if differences:
        raise SystemExit(f"the engines are not equal in this cell, by round robin: {'; '.join(differences)}")
    return both


def _tell(begin_s: float, what: str) -> None:
    print(f"{time.monotonic() - begin_s:5.0f} s  {what}", file=sys.stderr, flush=True)


def _machine() -> str:
    return f"{os.cpu_count()} processors ({platform.machine()}), Python {platform.python_version()}, {DYNAMO}."


if __name__ == "__main__":
    main()
