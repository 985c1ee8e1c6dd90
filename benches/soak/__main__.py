"""Everything at once for half an hour: two gateways that share, engines with events, faults, and the cost.

    python -m benches.soak [--minutes 30] [--rate 0] [--out docs/maintainers/soak.md]

Two gateways (the Starlette example and `cachelb serve`, each a process) tell each other over `ZmqMesh` what they book
and place, poll the metrics and receive the KV cache events of eight fake engines that answer over HTTP, two of them
with a hybrid model; `cachelb serve` holds requests by an `Admission`. A ramp finds the highest rate at which first
bytes come in time; 70 % of it is sent for the rest. Clients leave early, engines fail, one
restarts every 45 seconds, the Starlette gateway at half time; `cachelb serve` meets malformed heads, unfinished bodies
and clients that read slowly. Prints a line per gateway every 10 seconds, writes
bench-results/soak.json, and exits with 1 if the verdict does not hold.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path

from benches.soak.page import write_page
from benches.soak.run import Plan, soak
from benches.soak.verdict import figures, judge


def main() -> None:
    """Run, judge and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=0.0, help="requests per second; 0 looks for the capacity first")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two looks")
    parser.add_argument("--out", type=Path, help="page to write, with its image beside it in images/")
    options = parser.parse_args()
    plan = Plan(minutes=options.minutes, rate=options.rate or None, every_s=options.every)
    result = soak(plan, partial(print, flush=True))
    points = judge(result)
    found = figures(result, points)
    target = Path("bench-results/soak.json")
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    for point in points:
        print(f"{'holds' if point.holds else 'DOES NOT HOLD':14}{point.what}: {point.found}")
    if options.out:
        write_page(found, options.out)
    sys.exit(not all(point.holds for point in points))


if __name__ == "__main__":
    main()
