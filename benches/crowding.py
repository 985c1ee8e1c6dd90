"""The gain of `crowding` for `prefill-times-batch`: over the cells of Lodestar's grid, a table on standard output.

Every run is kept in a file, so a stopped run goes on where it was.

    python -m benches.crowding [--jobs 2] [--count 20000] [--loads 0.95]
"""

from __future__ import annotations

import argparse
import math
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from benches.learned.cells import COUNT, LOADS, Place, run
from benches.learned.rates import FLEETS
from benches.learned.store import Store
from benches.learned.workloads import WORKLOADS

from cachelb_lab.sim import prepare

if TYPE_CHECKING:
    from collections.abc import Sequence

BASELINE = "prefix-cache-and-load"
CONTENDERS: dict[str, tuple[str, dict[str, Any]]] = {
    BASELINE: (BASELINE, {}),
    "cache-aware": ("cache-aware", {}),
    "prefill-times-batch, as published": ("prefill-times-batch", {}),
    "crowding=1": ("prefill-times-batch", {"crowding": 1.0}),
    "crowding=2": ("prefill-times-batch", {"crowding": 2.0}),
}


def main() -> None:
    """Run missing cells, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--count", type=int, default=COUNT, help="requests per cell")
    parser.add_argument("--loads", default=",".join(map(str, LOADS)), help="parts of what the baseline can bear")
    parser.add_argument("--runs", type=Path, default=Path("bench-results/crowding.jsonl"))
    given = parser.parse_args()
    store = Store(given.runs)
    loads = [float(load) for load in given.loads.split(",")]
    places = [Place(*cell, 1, given.count) for cell in product(WORKLOADS, FLEETS, loads)]
    with ThreadPoolExecutor(given.jobs) as pool:
        for done, place in enumerate(pool.map(lambda place: _fill(place, store), places), 1):
            print(f"{done} of {len(places)}: {place.key('')}", file=sys.stderr, flush=True)
    print(table(store, places, loads))


def _fill(place: Place, store: Store) -> Place:
    missing = [name for name in CONTENDERS if place.key(name) not in store]
    if missing:
        requests = place.requests
        prepared = prepare(requests)
        for name in missing:
            policy, options = CONTENDERS[name]
            store.add(place.key(name), run(place, policy, requests, prepared, **options))
    return place


def table(store: Store, places: Sequence[Place], loads: Sequence[float]) -> str:
    """Return the table.

    Args:
        store: All runs.
        places: The cells.
        loads: Their loads.

    Returns:
        Markdown: mean and P99 of the TTFT after the first five minutes, as the baseline's over a policy's: geometric
        means over the cells of a load, and the worst cell of all for the mean.
    """
    title = " | ".join(f"{load:.0%}: mean, P99" for load in loads)
    lines = [f"| policy | {title} | worst cell |", "|---" * (len(loads) + 2) + "|"]
    for name in CONTENDERS:
        parts, worst = [], math.inf
        for load in loads:
            cells = [place for place in places if place.load == load]
            means, tails = ([_ratio(store, place, name, what) for place in cells] for what in ("mean", "p99"))
            parts.append(f"{geometric_mean(means):.2f}, {geometric_mean(tails):.2f}")
            worst = min(worst, *means)
        lines.append(f"| {name} | {' | '.join(parts)} | {worst:.2f} |")
    return "\n".join(lines)


def _ratio(store: Store, place: Place, name: str, what: str) -> float:
    own, baseline = (store[place.key(each)] for each in (name, BASELINE))
    # A short run is over before the first five minutes are.
    part = "later" if own["later"] and baseline["later"] else "all"
    return float(baseline[part][what] / own[part][what])


if __name__ == "__main__":
    main()
