"""The cost of a selection by every policy, while the machine is at its full speed.

python -m benches.steady_router [SECONDS] [PART OF A NAME]

The policies take turns for `SECONDS` (60), 2,000 selections each: all of them with 64 workers, and `learned` with
trained models and more or fewer, as far as their names contain the second argument. Between stretches of 40, or of 4
where a selection takes long, a yardstick is timed: a fixed piece of work of the interpreter. A stretch counts as steady
if the yardstick took no longer than 1.15 of its fastest percent before and after it: the others show how busy or how
throttled the machine was, not the cost of a selection. Prints a row of JSON per policy, with the median of all
stretches beside that of the steady ones.
"""

from __future__ import annotations

import gc
import itertools
import json
import sys
import time
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
from benches.test_learned import trained
from benches.test_router import IN_FLIGHT, KNOWN, OPTIONS, fleet, prompts
from benches.yardstick import yardstick

from cachelb.policies import POLICIES

if TYPE_CHECKING:
    from cachelb import Router

MODELS = {"16/learned/mlp": (16, "mlp"), "16/learned/linear": (16, "linear"), "256/learned/mlp": (256, "mlp")}
"""Policies with a model, by workers and kind; `64/learned` has none and is its fallback. Every worker reports another
load, on a clock that stands still: of workers that are alike, a model is asked about one."""
STRETCHES, WARM_UP = 50, 5
SELECTIONS, FEW_SELECTIONS = 40, 4
STEADY = 1.15


def build(part: str) -> dict[str, Router[str]]:
    """Return the routers whose names contain `part`."""
    named = {f"64/{policy}": (64, policy) for policy in POLICIES} | MODELS
    wanted = {name: of for name, of in named.items() if part in name}
    if not wanted:
        sys.exit(f"no name contains {part!r}; there are {', '.join(named)}")
    routers = {}
    for name, (workers, kind) in wanted.items():
        if name in MODELS:
            router = fleet(workers, policy=trained(kind), clock=lambda: 1.0)
            for at, worker in enumerate(router.workers()):
                router.load_sink.update_load(worker, running=at % 7, waiting=at % 5, kv_usage=at / workers)
            routers[name] = router
        else:
            routers[name] = fleet(workers, policy=kind, **OPTIONS.get(kind, {}))
    return routers


def measure(seconds: float, part: str) -> dict[str, list[tuple[int, list[int]]]]:
    """Time stretches of selections by every policy. Returns the slower yardstick and the nanoseconds of each."""
    requests = prompts()
    order = itertools.cycle(np.random.default_rng(2).integers(0, KNOWN, 500_000).tolist())
    routers = build(part)
    for router in routers.values():
        for request in requests:
            router.select_worker(**request).on_complete()
    in_flight = [router.select_worker(**requests[next(order)]) for router in routers.values() for _ in range(IN_FLIGHT)]
    found = defaultdict(list)
    clock = time.perf_counter_ns
    gc.disable()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for policy, router in routers.items():
            select = router.select_worker
            selections = FEW_SELECTIONS if policy.startswith("256/") else SELECTIONS
            before = yardstick()
            for stretch in range(STRETCHES):
                chosen = [requests[next(order)] for _ in range(selections)]
                times, decisions = [], []
                for request in chosen:
                    begin = clock()
                    decision = select(**request)
                    times.append(clock() - begin)
                    decisions.append(decision)
                after = yardstick()
                for decision in decisions:
                    decision.on_complete()
                if stretch >= WARM_UP:  # the first ones find the caches full of another router
                    found[policy].append((max(before, after), times))
                before = after
    assert len(in_flight) == IN_FLIGHT * len(routers)
    return found


def main() -> None:
    """Measure and print."""
    found = measure(float(sys.argv[1]) if len(sys.argv) > 1 else 60, sys.argv[2] if len(sys.argv) > 2 else "")
    fastest = np.quantile([took for rows in found.values() for took, _ in rows], 0.01)
    for policy, rows in found.items():
        everything = [times for _, times in rows]
        steady = [times for took, times in rows if took <= STEADY * fastest] or everything
        p50, p99 = np.quantile(steady, (0.5, 0.99)) / 1e3
        row = {
            "id": f"python/router/steady/{policy}",
            "unit": "us",
            "p50": round(p50, 2),
            "p99": round(p99, 2),
            "n": sum(map(len, steady)),
            "note": f"{len(steady)} of {len(rows)} stretches; p50 of all {np.median(everything) / 1e3:.2f}",
        }
        print(json.dumps(row))


if __name__ == "__main__":
    main()
