"""The cost of training: seconds of a round, and decisions beside one.

python -m benches.learned_training [KIND]

Rows of JSON: the seconds of rounds whose pools hold 10,000 samples, and the times of decisions among 16 workers while
a round runs beside those while none does, taken in turns. `slowdown` has the ratio of the 99th percentiles.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

from cachelb import Router
from cachelb.policies import Learned

WORKERS = [f"http://gpu{index}:8000" for index in range(16)]
THETA = 1_000
ROUNDS = 6
FILLED = 11
PROMPTS = [np.arange(begin, begin + 64 + 16 * (begin % 60), dtype=np.uint32) for begin in range(4_000)]


class Clock:
    """Seconds that pass as the requests say."""

    now = 0.0

    def __call__(self) -> float:
        """Return them."""
        return self.now


def row(name: str, unit: str, times: list[float], note: str) -> None:
    """Print one figure."""
    ordered = sorted(times)
    fields = {
        "id": f"python/learned/{name}",
        "unit": unit,
        "p50": float(np.median(ordered)),
        "p99": ordered[(len(ordered) - 1) * 99 // 100],
        "n": len(ordered),
        "note": note,
    }
    print(json.dumps(fields), flush=True)


def feed(router: Router[str], clock: Clock, begin: int, count: int) -> None:
    """Have so many requests answered, in times that depend on their lengths and on the load."""
    for i in range(begin, begin + count):
        with router.select_worker(tokens=PROMPTS[i % len(PROMPTS)]) as decision:
            clock.now += 1e-4 * len(PROMPTS[i % len(PROMPTS)]) * (1 + i % 3)
            decision.on_first_token()


def decide(router: Router[str], times: list[float], count: int) -> None:
    """Time decisions that teach nothing."""
    for i in range(count):
        tokens = PROMPTS[i % len(PROMPTS)]
        begin = time.perf_counter_ns()
        decision = router.select_worker(tokens=tokens)
        times.append((time.perf_counter_ns() - begin) / 1e3)
        decision.cancel()


def make(kind: Any, training: Any, clock: Clock) -> Router[str]:  # noqa: ANN401 - from the command line
    """Build a router."""
    policy = Learned(training=training, model_kind=kind, theta=THETA, n_min=THETA, timeout_ms=None, seed=1)
    return Router(WORKERS, policy=policy, clock=clock, seed=1)


def main(kind: str = "mlp") -> int:
    """Measure and print."""
    clock = Clock()
    inline = make(kind, "inline", clock)
    rounds = []
    for i in range(FILLED + ROUNDS):
        feed(inline, clock, i * THETA, THETA)
        (stats,) = inline.policy.learned_stats()
        if i >= FILLED:
            rounds.append(stats.round_s)
    row(f"round/{kind}", "s", rounds, f"pools of {stats.pooled} samples, {THETA} of them new, one thread")

    beside = make(kind, "background", clock)
    idle: list[float] = []
    busy: list[float] = []
    for i in range(FILLED + ROUNDS):
        feed(beside, clock, i * THETA, THETA)
        while beside.policy.learned_stats()[0].training:
            found: list[float] = []
            decide(beside, found, 200)
            if i >= FILLED:
                busy += found
            # Whether a round has ended is seen by the next request.
        if i >= FILLED:
            decide(beside, idle, 4_000)
    row(f"idle/{kind}", "us", idle, "decisions among 16 workers while no round runs")
    row(f"beside/{kind}", "us", busy, "the same while one does")
    ordered = [sorted(times)[(len(times) - 1) * 99 // 100] for times in (busy, idle)]
    row(f"slowdown/{kind}", "x", [ordered[0] / ordered[1]], "p99 beside a round / p99 without")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
