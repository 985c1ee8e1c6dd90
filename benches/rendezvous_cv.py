"""How evenly rendezvous hashing and a hash ring spread sessions, over many seeds.

Run: python benches/rendezvous_cv.py [--seeds 400] [--sessions 512] [--workers 3]

The coefficient of variation (CV) is the standard deviation of the sessions per worker over their mean. In theory, its
square has the mean (1 - 1/workers) / (sessions/workers) for rendezvous, which draws each session independently. On a
ring the workers' shares of the circle vary too, which adds (workers - 1) / (workers * vnodes + 1).
"""

from __future__ import annotations

import argparse
import sys
import time
from statistics import fmean, median, pstdev

from cachelb import policies

RINGS = (100, 150, 1000)


def variation(policy: policies.BuiltinPolicy, sessions: list[str], workers: list[str]) -> float:
    """Coefficient of variation of the sessions per worker."""
    counts = dict.fromkeys(workers, 0)
    for session in sessions:
        counts[policy.select_worker(workers, session=session, by_load=True).key] += 1
    return pstdev(counts.values()) / fmean(counts.values())


def measure(name: str, seeds: int, sessions: int, workers: int, **options: float | None) -> list[float]:
    """Coefficients of variation of policy `name` for seeds 0, 1, ..., each with sessions of its own."""
    urls = [f"http://gpu{i}:8000" for i in range(workers)]
    return [
        variation(policies.make(name, seed=seed, **options), [f"session-{seed}-{i}" for i in range(sessions)], urls)
        for seed in range(seeds)
    ]


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Evenness of rendezvous hashing against hash rings.")
    parser.add_argument("--seeds", type=int, default=400)
    parser.add_argument("--sessions", type=int, default=512)
    parser.add_argument("--workers", type=int, default=3)
    given = parser.parse_args()
    began = time.perf_counter()
    n = given.workers
    uniform = (1 - 1 / n) / (given.sessions / n)
    drawn = measure("rendezvous", given.seeds, given.sessions, n)
    print(f"{given.sessions} sessions, {n} workers, {given.seeds} seeds")
    print(f"{'':18} {'mean CV':>8} {'median':>8} {'theory, RMS':>12}   rendezvous against it")
    print(f"{'rendezvous':18} {fmean(drawn):8.2%} {median(drawn):8.2%} {uniform**0.5:12.2%}")
    for vnodes in RINGS:
        ring = measure("consistent-hash", given.seeds, given.sessions, n, epsilon=None, vnodes=vnodes)
        theory = (uniform + (n - 1) / (n * vnodes + 1)) ** 0.5
        lower = 1 - fmean(drawn) / fmean(ring)
        wins = sum(ours < theirs for ours, theirs in zip(drawn, ring, strict=True)) / given.seeds
        print(
            f"{f'ring, {vnodes} vnodes':18} {fmean(ring):8.2%} {median(ring):8.2%} {theory:12.2%}"
            f"   {lower:.0%} lower mean, more even for {wins:.0%} of seeds"
        )
    print(f"{time.perf_counter() - began:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
