"""The policy `learned` over Lodestar's grid, beside the alternatives: writes docs/maintainers/learned-grid.md.

Every run is kept in a file, so a stopped grid goes on where it was, and `--seeds 5` after `--seeds 1` runs four.

    python -m benches.learned_grid                         # everything: a night on two cores
    python -m benches.learned_grid --small                 # 3 workloads, 8 x A30, 6,000 requests, 1 seed
    python -m benches.learned_grid --policies prefix-cache-and-load,learned --workloads conversation
    python -m benches.learned_grid --again learned         # the policy has changed: forget its runs first
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

from benches.learned.cells import COUNT, LOADS, POLICIES, Place, run
from benches.learned.document import ABLATIONS, Grid, document
from benches.learned.rates import FLEETS
from benches.learned.store import Store
from benches.learned.workloads import WORKLOADS

from cachelb.policies import POLICIES as KNOWN
from cachelb_lab.sim import prepare

SMALL = ("conversation", "prefix-mixed", "tool-agent")
SMALL_COUNT = 6_000
HEAD = Path(__file__).parent / "learned" / "head.md"


def main() -> None:
    """Run missing cells, then write the page."""
    given = _arguments()
    policies = [policy for policy in given.policies.split(",") if POLICIES[policy][0] in KNOWN]
    workloads, fleets = given.workloads.split(","), given.fleets.split(",")
    loads = [float(load) for load in given.loads.split(",")]
    store = Store(given.runs)
    if given.again:
        store.forget(given.again.split(","))
    firsts = [
        Place(workload, fleet, load, 1, given.count) for workload, fleet, load in product(workloads, fleets, loads)
    ]
    # All cells of a seed before the next seed: a stopped grid is a whole one with fewer seeds.
    places = [
        Place(first.workload, first.fleet, first.load, seed, given.count)
        for seed in range(1, given.seeds + 1)
        for first in firsts
    ]
    missing = (
        []
        if given.write
        else [(place, [policy for policy in policies if place.key(policy) not in store]) for place in places]
    )
    missing = [(place, wanted) for place, wanted in missing if wanted]
    total, done, begin = sum(len(wanted) for _, wanted in missing), 0, time.monotonic()
    with ThreadPoolExecutor(given.jobs) as pool:
        for place, ran in pool.map(lambda work: _runs(work, store), missing):
            done += ran
            spent = time.monotonic() - begin
            left = spent / done * (total - done) / 60
            where = f"{place.workload}, {place.fleet}, {place.load:.0%}, seed {place.seed}"
            print(f"{done} of {total} runs, {left:.0f} min left: {where}", file=sys.stderr, flush=True)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    grid = Grid(store, firsts, policies, given.seeds)
    page = given.out.read_text(encoding="utf-8") if given.out.exists() else ""
    _, found, ablations = page.partition(ABLATIONS)
    given.out.write_text(document(grid, _head(grid, given)) + found + ablations, encoding="utf-8")
    print(f"wrote {given.out}", file=sys.stderr)


def _arguments() -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a grid of minutes; other options still count")
    parser.add_argument("--workloads")
    parser.add_argument("--fleets")
    parser.add_argument("--loads", default=",".join(map(str, LOADS)))
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--count", type=int, help="requests of a run; fewer than 20,000 also skip the ten minutes")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="run nothing, write of the cells that are there")
    parser.add_argument("--again", help="policies whose runs are forgotten first")
    parser.add_argument("--runs", type=Path, default=Path("bench-results/learned-grid.jsonl"), help="runs made so far")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    small = given.small
    given.workloads = given.workloads or ",".join(SMALL if small else WORKLOADS)
    given.fleets = given.fleets or (FLEETS[0] if small else ",".join(FLEETS))
    given.seeds = given.seeds or (1 if small else 5)
    given.count = given.count or (SMALL_COUNT if small else COUNT)
    given.out = given.out or Path("bench-results/learned-grid.md" if small else "docs/maintainers/learned-grid.md")
    return given


def _runs(work: tuple[Place, list[str]], store: Store) -> tuple[Place, int]:
    """Run some policies at one place and store their figures."""
    place, policies = work
    requests = place.requests
    prepared = prepare(requests)
    for policy in policies:
        store.add(place.key(policy), run(place, policy, requests, prepared))
    return place, len(policies)


def _head(grid: Grid, given: argparse.Namespace) -> str:
    """Return the text above the tables."""
    text = HEAD.read_text(encoding="utf-8")
    whole = len(WORKLOADS) * len(FLEETS) * len(LOADS)
    return text.format(
        places=len(grid.places),
        whole=whole,
        count=f"{given.count:,}",
        seeds=f"{grid.most_seeds} seed{'s' if grid.most_seeds > 1 else ''}",
    )


if __name__ == "__main__":
    main()
