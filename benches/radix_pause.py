"""How long others wait while a tree of 200,000 leaves is evicted to half, and the time of a short prompt.

Run as `python -m benches.radix_pause`; prints JSON lines for `report.py`. A probe thread matches and inserts all the
time. How long the machine itself keeps a process from running that shares nothing with anybody is the row beside it:
virtual machines lose their cores for milliseconds.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import random
import statistics
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING

from cachelb.index import RadixTree

if TYPE_CHECKING:
    from collections.abc import Callable

LEAVES = 200_000
ROUNDS = 9
LIMIT_US = 1000.0


@dataclasses.dataclass
class Probe(threading.Thread):
    """Times every call until it is stopped."""

    tree: RadixTree
    prompts: list[str]
    stop: threading.Event = dataclasses.field(default_factory=threading.Event)
    started: threading.Event = dataclasses.field(default_factory=threading.Event)
    waits_us: list[float] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        """Make the thread."""
        super().__init__(daemon=True)

    def __hash__(self) -> int:
        """Threads are kept in sets."""
        return id(self)

    def run(self) -> None:
        """Match and insert in turn."""
        number = 0
        while not self.stop.is_set():
            prompt = self.prompts[number % len(self.prompts)]
            start = time.perf_counter()
            if number % 2:
                self.tree.match_prefix(prompt)
            else:
                self.tree.insert(prompt, "probe")
            self.waits_us.append((time.perf_counter() - start) * 1e6)
            number += 1
            self.started.set()


def prompts(count: int, seed: int) -> list[str]:
    """Draw short distinct prompts of 50 to 100 characters."""
    dice = random.Random(seed)
    words = ["".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=dice.randint(2, 9))) for _ in range(5000)]
    return [" ".join(dice.choices(words, k=16))[: dice.randint(50, 100)] for _ in range(count)]


def row(**line: str | float) -> None:
    """Print a line of the report."""
    print(json.dumps(line), flush=True)


def pauses(name: str, rounds: list[list[float]], note: str) -> None:
    """Print the median of the longest waits of all rounds, and the 99th percentile of the waits."""
    waits = sorted(itertools.chain(*rounds))
    longest = statistics.median(map(max, rounds))
    over = sum(wait > LIMIT_US for wait in waits)
    note = f"{note}; median of the longest of {len(rounds)} rounds, {over} waits over 1 ms"
    p99 = waits[(len(waits) - 1) * 99 // 100]
    row(id=f"python/radix/pause/{name}", unit="us", p50=longest, p99=p99, n=len(waits), note=note)


def probed(tree: RadixTree, work: Callable[[], object]) -> list[float]:
    """Time calls beside `work`."""
    probe = Probe(tree, prompts(2000, 9))
    probe.start()
    probe.started.wait(30)
    probe.waits_us.clear()
    work()
    probe.stop.set()
    probe.join(30)
    return probe.waits_us


def gaps(seconds: float) -> list[float]:
    """Read the clock without end. Returns how far apart two readings were, in microseconds, of those over 50."""
    found = [0.0]
    last = time.perf_counter()
    until = last + seconds
    while last < until:
        now = time.perf_counter()
        if now - last > 50e-6:
            found.append((now - last) * 1e6)
        last = now
    return found


def main() -> None:
    """Measure."""
    beside: list[list[float]] = []
    alone: list[list[float]] = []
    took = []
    leaves = prompts(LEAVES, 1)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as neighbour:
        neighbour.submit(gaps, 0.0).result()
        for _ in range(ROUNDS):
            tree = RadixTree()
            for number, prompt in enumerate(leaves):
                tree.insert(prompt, f"gpu{number % 8}")
            size = tree.memory_bytes / LEAVES
            start = time.perf_counter()
            beside.append(probed(tree, functools.partial(tree.evict, tree.size() // 2)))
            took.append(time.perf_counter() - start)
            other = neighbour.submit(gaps, took[-1])
            alone.append([*gaps(took[-1]), *other.result()])
    tree.validate()
    row(
        id="python/radix/bytes-per-short-prompt",
        unit="B",
        p50=size,
        p99=size,
        n=1,
        note="50-100 characters, one holder",
    )
    pauses("evicting", beside, f"calls beside evict to half, {statistics.median(took) * 1e3:.0f} ms in all")
    pauses("machine", alone, "two processes that only read the clock, for as long: gaps over 50 us")


if __name__ == "__main__":
    main()
