"""How long others wait while a tree of 200,000 leaves is evicted to half, and what a short prompt takes.

Run as `python -m benches.radix_pause`; prints JSON lines for `report.py`. A probe thread matches and inserts all the
time; the same probe without the eviction is the row beside it, for on a busy machine the scheduler alone makes threads
wait.
"""

from __future__ import annotations

import dataclasses
import json
import random
import threading
import time

from cachelb import RadixTree

LEAVES = 200_000


@dataclasses.dataclass
class Probe(threading.Thread):
    """Times every call until it is told to stop."""

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


def row(name: str, unit: str, values: list[float], note: str) -> None:
    """Print a line of the report: the worst in place of the median where a pause is what counts."""
    ordered = sorted(values)
    p99 = ordered[(len(ordered) - 1) * 99 // 100]
    line = {"id": name, "unit": unit, "p50": ordered[-1], "p99": p99, "n": len(values), "note": note}
    print(json.dumps(line), flush=True)


def probed(tree: RadixTree, work: object) -> list[float]:
    """Time calls beside `work`."""
    probe = Probe(tree, prompts(2000, 9))
    probe.start()
    probe.started.wait(30)
    probe.waits_us.clear()
    if callable(work):
        work()
    probe.stop.set()
    probe.join(30)
    return probe.waits_us


def main() -> None:
    """Measure."""
    tree = RadixTree()
    for number, prompt in enumerate(prompts(LEAVES, 1)):
        tree.insert(prompt, f"gpu{number % 8}")
    row("python/radix/bytes-per-short-prompt", "B", [tree.memory_bytes / LEAVES], "50-100 characters, one holder")
    took = time.perf_counter()
    half = tree.size() // 2
    waits = probed(tree, lambda: tree.evict(half))
    took = time.perf_counter() - took
    row("python/radix/pause/evicting", "us", waits, f"longest call beside evict to half, {took * 1e3:.0f} ms in all")
    row("python/radix/pause/idle", "us", probed(tree, lambda: time.sleep(took)), "the same without the eviction")
    tree.validate()


if __name__ == "__main__":
    main()
