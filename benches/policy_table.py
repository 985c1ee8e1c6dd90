"""Every policy on every workload, two fleets, three loads: writes the tables of docs/policy-table.md.

No policy is tuned: all run with their defaults. A load is a share of the rate that round robin can keep up with on that
fleet. Runs are kept in a file, so a stopped run goes on where it was.

    python -m benches.policy_table                      # everything: some minutes on two cores
    python -m benches.policy_table --workloads chat,rag --seeds 1 --out table.md
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import geometric_mean, mean
from typing import TYPE_CHECKING, Any

import numpy as np
from benches.learned.lessons import learn

from cachelb.policies import POLICIES
from cachelb.sim import WORKLOADS as GENERATORS
from cachelb.sim import FleetSpec, SimResult, Workload, build, simulate
from cachelb.sim.saturation import highest, keeps_up
from cachelb.sim.workloads.traces import read_mooncake

if TYPE_CHECKING:
    from collections.abc import Iterator

FLEETS = {"8 x L40S": "8xl40s", "4 x H100 + 4 x L40S": "4xh100-80+4xl40s"}
WORKLOADS = ("conversation", *GENERATORS)
LOADS = (0.5, 0.7, 0.9)
EXTRA = ("kv-aware+oracle",)
COUNT = 800
LESSONS, LESSON_LOAD = (11, 12, 13), 0.7
"""Seeds, beyond those of the cells, and load of what `learned` has learned from before a run."""
PROBES = 7
"""Steps of the search for what round robin keeps up with: to 1 % of the first bracket."""
_TRACE = "traces/mooncake/conversation_trace.jsonl.xz"


@dataclass(frozen=True)
class Cell:
    """One run."""

    workload: str
    fleet: str
    load: float
    policy: str
    seed: int

    @property
    def key(self) -> str:
        """Return what it is kept under."""
        return "/".join(map(str, (self.workload, self.fleet, self.load, self.policy, self.seed, COUNT)))


def main() -> None:
    """Run what is missing, then write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--policies", default=",".join((*POLICIES, *EXTRA)))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", type=Path, default=Path("bench-results/policy-table.jsonl"), help="runs made so far")
    parser.add_argument("--out", type=Path, default=Path("docs/policy-table.md"))
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    given = parser.parse_args()
    workloads, policies = given.workloads.split(","), given.policies.split(",")
    runs = _read(given.runs)
    given.runs.parent.mkdir(parents=True, exist_ok=True)
    with given.runs.open("a", encoding="utf-8") as file, ThreadPoolExecutor(given.threads) as pool:
        for name in workloads:
            for fleet in FLEETS:
                cells = [
                    Cell(name, fleet, load, policy, seed)
                    for load in LOADS
                    for policy in policies
                    for seed in range(1, given.seeds + 1)
                ]
                missing = [cell for cell in cells if cell.key not in runs]
                if not missing:
                    continue
                rate = capacity(name, fleet)
                print(f"{name} on {fleet}: round robin keeps up with {rate:.3g} x", file=sys.stderr, flush=True)
                for cell, found in pool.map(lambda cell, rate=rate: (cell, run(cell, rate)), missing):
                    runs[cell.key] = found
                    file.write(json.dumps({"cell": cell.key, **found}) + "\n")
                file.flush()
    given.out.write_text(document(runs, workloads, policies, given.seeds), encoding="utf-8")
    print(f"wrote {given.out}", file=sys.stderr)


def _read(path: Path) -> dict[str, dict[str, float]]:
    """Return the runs made so far."""
    if not path.exists():
        return {}
    rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return {row.pop("cell"): row for row in rows}


def workload(name: str, seed: int, speed: float) -> Workload:
    """Return requests that come so many times as fast as the workload's own rate."""
    made = _recorded(name, seed)
    return replace(made, arrival_s=made.arrival_s / speed)


@cache
def _recorded(name: str, seed: int) -> Workload:
    """Return requests with times of their own: turns that follow answers come when they do on an idle fleet."""
    if name == "conversation":
        whole = _conversations()
        first = (seed - 1) * COUNT % (len(whole) - COUNT)
        made = whole.slice(first, first + COUNT)
        return replace(made, arrival_s=made.arrival_s - made.arrival_s[0])
    made = build(name, seed=seed, count=COUNT)
    if not (made.parent >= 0).any():
        return made
    idle = simulate(made, FleetSpec.parse("64xh100-80"), "session", base="least-loaded", seed=1)
    free = np.full(len(made), -1, dtype=np.int64)
    return replace(made, arrival_s=idle.arrival_s, parent=free, think_s=np.zeros(len(made))).in_order()


@cache
def _conversations() -> Workload:
    """Return the whole trace."""
    data = Path(os.environ.get("CACHELB_DATA", Path(__file__).parents[2] / "shared"))
    return read_mooncake(data / _TRACE)


def run(cell: Cell, rate: float) -> dict[str, float]:
    """Return the figures of one cell."""
    requests = workload(cell.workload, cell.seed, rate * cell.load)
    options: dict[str, Any] = {"base": "cache-aware"} if cell.policy == "session" else {}
    if cell.policy == "learned":
        options["model"] = lesson(cell.workload, cell.fleet, rate)
    result = simulate(requests, FleetSpec.parse(FLEETS[cell.fleet]), cell.policy, seed=cell.seed, **options)
    return figures(result)


@cache
def lesson(name: str, fleet: str, rate: float) -> bytes:
    """Return a model of other requests of the workload: a run is over before a policy has learned of its own."""
    parts = [workload(name, seed, LESSON_LOAD * rate) for seed in LESSONS]
    return learn(Workload.concat(parts, one_after_the_other=True), FleetSpec.parse(FLEETS[fleet]), seed=LESSONS[0])


def figures(result: SimResult) -> dict[str, float]:
    """Return what the tables show."""
    ttft = result.ttft_s
    served = result.finished
    prompt = result.workload.prompt_tokens[served].sum(dtype=np.int64)
    return {
        "ttft": float(ttft.mean()),
        "p99": float(np.percentile(ttft, 99)),
        "tpot": float(result.tpot_s.mean()) if (result.workload.output_tokens > 1).any() else 0.0,
        "hit": float(result.cached_tokens[served].sum(dtype=np.int64) / prompt),
        "finished": float(served.mean()),
    }


def capacity(name: str, fleet: str) -> float:
    """Return by how much arrivals can be sped up before round robin's queues grow without end."""
    workers = FleetSpec.parse(FLEETS[fleet])

    def bears(speed: float) -> bool:
        return keeps_up(simulate(workload(name, 1, speed), workers, "round-robin", seed=1))

    return highest(bears, start=1.0, step=2.0, probes=PROBES)


# === the document ===


def document(runs: dict[str, Any], workloads: list[str], policies: list[str], seeds: int) -> str:
    """Return the page."""
    parts = [_HEAD.format(count=COUNT, seeds=seeds, lessons=len(LESSONS) * COUNT, lesson_load=LESSON_LOAD)]
    parts += ["## Summary", "", *summary(runs, workloads, policies, seeds), ""]
    for fleet in FLEETS:
        for load in LOADS:
            parts += [f"## {fleet}, {load:.0%} of what round robin can keep up with", ""]
            parts += [*table(runs, workloads, policies, seeds, (fleet, load)), ""]
    return "\n".join(parts)


def values(runs: dict[str, Any], cell: Cell, seeds: int, figure: str) -> list[float]:
    """Return one figure of all seeds."""
    keys = (replace(cell, seed=seed).key for seed in range(1, seeds + 1))
    return [runs[key][figure] for key in keys]


def table(
    runs: dict[str, Any], workloads: list[str], policies: list[str], seeds: int, column: tuple[str, float]
) -> Iterator[str]:
    """Yield the lines of a table: mean TTFT in seconds, and how far the seeds lie apart."""
    yield "| policy | " + " | ".join(workloads) + " |"
    yield "|---" * (len(workloads) + 1) + "|"
    found = {
        (policy, name): values(runs, Cell(name, *column, policy, 1), seeds, "ttft")
        for policy in policies
        for name in workloads
    }
    best = {name: min(mean(found[policy, name]) for policy in ranked(policies)) for name in workloads}
    for policy in policies:
        texts = []
        for name in workloads:
            seconds = found[policy, name]
            middle = mean(seconds)
            text = f"{middle:.3g} ({min(seconds):.3g}-{max(seconds):.3g})"
            texts.append(f"**{text}**" if middle <= best[name] * 1.02 and policy in ranked(policies) else text)
        yield f"| {policy} | " + " | ".join(texts) + " |"


def ranked(policies: list[str]) -> list[str]:
    """Return the policies that could be deployed: an oracle is only a yardstick."""
    return [policy for policy in policies if "+oracle" not in policy]


def summary(runs: dict[str, Any], workloads: list[str], policies: list[str], seeds: int) -> Iterator[str]:
    """Yield the lines of a table: TTFT over the best policy's, over all cells of a fleet and load."""
    columns = [(fleet, load) for fleet in FLEETS for load in LOADS]
    yield "| policy | " + " | ".join(f"{fleet}, {load:.0%}" for fleet, load in columns) + " | worst cell | hit rate |"
    yield "|---" * (len(columns) + 3) + "|"

    def ttft(policy: str, name: str, fleet: str, load: float) -> float:
        return mean(values(runs, Cell(name, fleet, load, policy, 1), seeds, "ttft"))

    best = {
        (name, *column): min(ttft(policy, name, *column) for policy in ranked(policies))
        for name in workloads
        for column in columns
    }
    rows = []
    for policy in policies:
        ratios = {at: ttft(policy, *at) / best[at] for at in best}
        means = [geometric_mean([ratios[name, *column] for name in workloads]) for column in columns]
        hits = [
            mean(values(runs, Cell(name, *column, policy, 1), seeds, "hit")) for name in workloads for column in columns
        ]
        worst = max(ratios, key=lambda at: ratios[at])
        told = f"{ratios[worst]:.1f} ({worst[0]}, {worst[1]}, {worst[2]:.0%})"
        rows.append((geometric_mean(means), policy, means, told, mean(hits)))
    for _, policy, means, told, hit in sorted(rows):
        yield f"| {policy} | " + " | ".join(f"{value:.2f}" for value in means) + f" | {told} | {hit:.2f} |"


_HEAD = """# Every policy on every workload

Made by `python -m benches.policy_table`: {count} requests per run, {seeds} seeds, which change the requests and the
ties. Every policy runs with its defaults; none was tuned on these cells. Engines, costs and delays are those of the
[simulator](simulator.md), with load reports every 100 ms. `kv-aware` gets KV events 5 ms late; all other policies go by
what they placed. `kv-aware+oracle` knows caches and loads at once and exactly: it is a yardstick, not a policy.
`session` keeps what `cache-aware` picks for a conversation. `learned` needs more requests than a run has before its
first model, so it begins with that of {lessons:,} other requests of the workload at {lesson_load:.0%}, and keeps it.

Loads are shares of the rate at which round robin's queues stay bounded on the same fleet, found anew for each workload.
Turns of chats and agents come when they do on an idle fleet, all faster by the same factor.
Of the hour of the conversation trace a run takes {count} rows in a row. Cells are the mean time to the first token in
seconds, and from the smallest to the largest mean of the seeds; those within 2 % of the best are bold.
"""


if __name__ == "__main__":
    main()
