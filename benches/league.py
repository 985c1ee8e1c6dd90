"""The project's own league: which policy is the default is decided by it. Every run is kept, so a stopped one goes on.

    python -m benches.league --part develop                    # half an hour on two cores
    python -m benches.league --part develop --only agents --policy "cache-aware,overlap-cost+events"
    python -m benches.league --part develop --again cache-aware    # the policy has changed: make its runs again
    python -m benches.league --part report --seeds 3           # once, when a policy is done

Contents: real chats and agents, an agent benchmark, and generators; three fleets each, one of them mixed; five
loads; then every fault and delay at two loads. Cells of the develop half are there to look at while a policy is made;
those of the report half are not.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from cachelb.common.calls import split_list
from cachelb.policies import POLICIES
from cachelb_lab.sim.league import LOADS, REALISM, League, Store, markdown, play
from cachelb_lab.sim.league.traces import PARTS

DATA = Path(os.environ.get("CACHELB_DATA", Path(__file__).parents[2] / "shared")) / "traces"
CONVERSATION = f"{DATA}/mooncake/conversation_trace.jsonl.xz(jitter=3)"
AGENTS = f"{DATA}/agents/agent_sessions_develop.jsonl.xz(limit=120{{loop}})"
TAUBENCH = f"{DATA}/agents/taubench_sessions_block16.jsonl.xz(copies=40)"
GENERATED = (
    "chat(count=12000)",
    "agent(count=8000)",
    "tool-agent(count=8000)",
    "rag(count=8000)",
    "tenants(count=8000)",
)
FLEETS = ("8xl40s", "8xa100-80", "4xh100-80+4xl40s")
LARGE_FLEETS = ("8xh100-80", "8xa100-80", "4xh100-80+4xa100-80")
"""For prompts of 110,000 tokens in the median."""
DISTURBED_LOADS = (0.7, 0.95)
CONTENDERS = (
    *POLICIES,
    "adaptive+events",
    *("prefill-times-batch(crowding=1)", "prefill-times-batch(crowding=1)+events", "prefill-times-batch+events"),
    *("cache-aware+events", "sticky-until-saturated+events", "overlap-cost+events", "estimated-ttft+events"),
)


def leagues(part: str, seeds: range) -> dict[str, League]:
    """Return the settings, by name."""
    # No fleet here has a device that shares a model.
    faults = [name for name in REALISM if name not in ("none", "tensor-parallel-loss")]
    return {
        "chat": League((CONVERSATION, TAUBENCH, *GENERATED), FLEETS, LOADS, seeds=seeds, part=part),
        "agents": League(
            (AGENTS.format(loop=""), AGENTS.format(loop=",loop=closed")), LARGE_FLEETS, LOADS, seeds=seeds, part=part
        ),
        "faults": League(
            (CONVERSATION, TAUBENCH, *GENERATED[:2]),
            FLEETS[:1],
            DISTURBED_LOADS,
            realism=faults,
            seeds=seeds,
            part=part,
        ),
        "agents-faults": League(
            (AGENTS.format(loop=""),), LARGE_FLEETS[:1], DISTURBED_LOADS, realism=faults, seeds=seeds, part=part
        ),
    }


def main() -> None:
    """Run missing cells, then write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS[1:], required=True)
    parser.add_argument("--only", help="names of settings, by commas: " + ", ".join(leagues("develop", range(1, 2))))
    parser.add_argument("--policy", default=",".join(CONTENDERS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--again", default="", help="policies whose runs are made again")
    parser.add_argument("--store", type=Path, help="bench-results/league-PART.jsonl")
    parser.add_argument("--out", type=Path, help="Markdown; standard output by default")
    parser.add_argument("--svg", type=Path)
    given = parser.parse_args()
    settings = leagues(given.part, range(1, given.seeds + 1))
    chosen = [settings[name] for name in given.only.split(",")] if given.only else list(settings.values())
    store = Store(given.store or Path(f"bench-results/league-{given.part}.jsonl"))
    if given.again:
        store.forget(split_list(given.again))
    found = play(chosen, split_list(given.policy), store=store, threads=given.threads, progress=_Progress())
    if given.out is None:
        print(markdown(found))
    else:
        given.out.write_text(markdown(found), encoding="utf-8")
    if given.svg is not None:
        from cachelb_lab.plots import write_ratios

        write_ratios(given.svg, found)


class _Progress:
    """Prints the share that is done, once a percent."""

    def __init__(self) -> None:
        self._begin_s, self._told = time.monotonic(), -1

    def __call__(self, share: float) -> None:
        if int(share * 100) > self._told:
            self._told = int(share * 100)
            print(f"{self._told} %, {time.monotonic() - self._begin_s:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
