"""Python threads that look up prompts and that select, of one index or router: calls a second of all together.

    python -m benches.free_threading [--threads 1,2] [--rounds 5]

Each thread has its own prompts of 2,048 tokens, as arrays, of a million blocks on 64 workers. Thread counts take turns;
medians of the rounds. Without a GIL (CPython 3.14t) calls run side by side, with one they wait for each other.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import threading
import time
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from cachelb import Router
from cachelb.index import BlockTracker

if TYPE_CHECKING:
    from collections.abc import Callable

    Prompts = list[np.ndarray[tuple[int], np.dtype[np.uint32]]]

BLOCK_SIZE = 16
TOKENS = 2_048
PROMPTS = 1_000_000 * BLOCK_SIZE // TOKENS
WORKERS = [f"w{number}" for number in range(64)]
MEASURED_S = 1.0
BATCH = 100
"""Calls between two looks at the clock."""


def calls_per_s(call: Callable[[np.ndarray], object], prompts: Prompts, threads: int, measured_s: float) -> float:
    """Return how many calls a second threads do together, each over its own share of the prompts."""
    barrier = threading.Barrier(threads)
    done, took_s = [0] * threads, [0.0] * threads

    def work(number: int) -> None:
        own = [prompt.copy() for prompt in prompts[number::threads]]
        random.Random(number).shuffle(own)
        barrier.wait()
        began, calls, now = time.perf_counter(), 0, 0.0
        while now < began + measured_s:
            for at in range(calls, calls + BATCH):
                call(own[at % len(own)])
            calls += BATCH
            now = time.perf_counter()
        done[number], took_s[number] = calls, now - began

    running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return sum(calls / seconds for calls, seconds in zip(done, took_s, strict=True))


def kinds(count: int) -> tuple[Prompts, dict[str, Callable[[np.ndarray], object]]]:
    """Make prompts, an index and a router that hold them, and the calls to measure."""
    dice = np.random.default_rng(1)
    prompts = [dice.integers(1, 100_000, TOKENS, np.uint32) for _ in range(count)]
    tracker = BlockTracker(block_size=BLOCK_SIZE)
    router = Router(WORKERS, block_size=BLOCK_SIZE, seed=1)
    for number, prompt in enumerate(prompts):
        tracker.record_request(prompt, WORKERS[number % len(WORKERS)])
        with router.select_worker(tokens=prompt):
            pass

    def decide(prompt: np.ndarray) -> None:
        router.select_worker(tokens=prompt).on_complete()

    return prompts, {"find_best_worker": tracker.find_best_worker, "select_worker, to its end": decide}


def main(arguments: list[str] | None = None) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    counts = ",".join(str(2**power) for power in range((os.cpu_count() or 1).bit_length()))
    parser.add_argument("--threads", default=counts, help="numbers of threads, with commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--seconds", type=float, default=MEASURED_S, help="of each measurement")
    given = parser.parse_args(arguments)
    prompts, calls = kinds(given.prompts)
    gil = "no GIL" if not getattr(sys, "_is_gil_enabled", lambda: True)() else "a GIL"
    print(f"{'calls/s of all threads, ' + gil:40}{'threads':>8}{'median':>12}{'of one thread':>15}")
    numbers = list(map(int, given.threads.split(",")))
    for name, call in calls.items():
        found: dict[int, list[float]] = {number: [] for number in numbers}
        for _ in range(given.rounds):
            for number in numbers:
                found[number].append(calls_per_s(call, prompts, number, given.seconds))
        for number, rates in found.items():
            multiple = median(rate / one for rate, one in zip(rates, found[numbers[0]], strict=True))
            print(f"{name:40}{number:>8}{median(rates):>12,.0f}{multiple:>15.2f}")


if __name__ == "__main__":
    main()
