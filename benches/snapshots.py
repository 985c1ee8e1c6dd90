"""The cost of snapshots of a million blocks: kept for the next start, on disk, and sent to a peer.

python -m benches.snapshots [BLOCKS]

Eight workers; prompts of 125 blocks of 16 tokens, 25 of them shared by groups of 50 prompts. Beside them, another
thread selects without a pause: how long its longest selection took, with snapshots and without. Prints JSON lines for
`report.py`.
"""

from __future__ import annotations

import contextlib
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING

from cachelb import Router
from cachelb.policies import CacheAware
from cachelb.state.keeping import FileKeeper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WORKERS = [f"gpu{at}" for at in range(8)]
PROMPT, SHARED, GROUP = 125, 25, 50
BLOCK_BYTES = 64
ROUNDS = 5


def make_router() -> Router[str]:
    """Build a router with room for all of it."""
    return Router(
        WORKERS,
        policy=CacheAware(max_blocks_per_worker=1_000_000),
        secret="known to all gateways",  # noqa: S106 - of this bench
        seed=1,
        max_memory_mb=1024,
    )


def fill(router: Router[str], blocks: int) -> int:
    """Route prompts until workers hold so many blocks. Returns how many they hold."""
    dice = random.Random(1)
    held, prompts = 0, 0
    head = b""
    while held < blocks:
        if prompts % GROUP == 0:
            head = dice.randbytes(BLOCK_BYTES * SHARED)
            held = sum(sum(worker.index_blocks.values()) for worker in router.stats().workers)
        prompts += 1
        router.select_worker(tokens=head + dice.randbytes(BLOCK_BYTES * (PROMPT - SHARED))).on_complete()
    return held


def timed(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Take the time of a call, in milliseconds."""
    start = clock()
    work()
    return (clock() - start) * 1e3


@contextlib.contextmanager
def selecting(router: Router[str], waits: list[float]) -> Iterator[None]:
    """Select in another thread, and note how long each selection takes, in milliseconds."""
    stop = threading.Event()

    def work() -> None:
        dice = random.Random(2)
        while not stop.is_set():
            tokens = dice.randbytes(BLOCK_BYTES * 32)
            start = time.perf_counter()
            decision = router.select_worker(tokens=tokens)
            waits.append((time.perf_counter() - start) * 1e3)
            decision.on_complete()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def line(name: str, values: list[float], unit: str, note: str) -> None:
    """Print a figure; `p99` is the worst."""
    found = {
        "id": f"python/snapshots/{name}",
        "unit": unit,
        "p50": statistics.median(values),
        "p99": max(values),
        "n": len(values),
        "note": note,
    }
    print(json.dumps(found), flush=True)


def waits_line(name: str, values: list[float], note: str) -> None:
    """Print how long selections took: median and 99th percentile, and in the note the longest."""
    ranked = sorted(values)
    found = {
        "id": f"python/snapshots/{name}",
        "unit": "ms",
        "p50": ranked[len(ranked) // 2],
        "p99": ranked[len(ranked) * 99 // 100],
        "n": len(ranked),
        "note": f"{note}; 99.9 % within {ranked[len(ranked) * 999 // 1000]:.2f} ms, longest {ranked[-1]:.2f} ms",
    }
    print(json.dumps(found), flush=True)


def peer_messages(router: Router[str]) -> list[bytes]:
    """All messages that a peer receives."""
    router._fleet.share(1, 3600.0, 1 << 24)
    try:
        return router._fleet.publish_all()
    finally:
        router._fleet.unshare()


def hear(messages: list[bytes], clock: Callable[[], float] = time.perf_counter) -> float:
    """Apply them at a new router. Returns milliseconds."""
    with make_router() as peer:
        peer._fleet.share(2, 3600.0, 1 << 24)
        return timed(lambda: [peer._fleet.receive(message) for message in messages], clock)


def restore(data: bytes, clock: Callable[[], float] = time.perf_counter) -> float:
    """Restore to a new router. Returns milliseconds."""
    with make_router() as other:
        return timed(lambda: other.shared_state.restore(data), clock)


def main(blocks: int) -> None:
    """Measure."""
    router = make_router()
    held = fill(router, blocks)
    what = f"{held} blocks on {len(WORKERS)} workers; median and worst of {ROUNDS}"
    data = router.shared_state.snapshot()
    line("write", [timed(router.shared_state.snapshot) for _ in range(ROUNDS)], "ms", what)
    line("bytes-per-block", [len(data) / held], "bytes", what)
    line("restore", [restore(data) for _ in range(ROUNDS)], "ms", what)
    cpu = time.thread_time
    line(
        "write-cpu", [timed(router.shared_state.snapshot, cpu) for _ in range(ROUNDS)], "ms", f"{what}; processor time"
    )
    line("restore-cpu", [restore(data, cpu) for _ in range(ROUNDS)], "ms", f"{what}; processor time")
    messages = peer_messages(router)
    line("peer-tell", [timed(lambda: peer_messages(router)) for _ in range(ROUNDS)], "ms", what)
    line("peer-hear", [hear(messages) for _ in range(ROUNDS)], "ms", f"{what}; {len(messages)} messages")
    line("peer-hear-cpu", [hear(messages, cpu) for _ in range(ROUNDS)], "ms", f"{what}; processor time")
    # Selections beside add blocks, so all lines that state `held` blocks come before them.
    with tempfile.TemporaryDirectory() as folder:
        keeper = FileKeeper(router, f"{folder}/router.snapshot", 60.0)
        line("write-file", [timed(keeper.write) for _ in range(ROUNDS)], "ms", f"{what}; with fsync")
        alone, beside = list[float](), list[float]()
        with selecting(router, alone):
            time.sleep(2.0)
        with selecting(router, beside):
            for _ in range(ROUNDS):
                keeper.write()
        waits_line("select-alone", alone, "512 new tokens, one thread")
        waits_line("select-while-writing", beside, f"the same beside {ROUNDS} snapshots to a file")
    beside = []
    with make_router() as other, selecting(other, beside):
        other.shared_state.restore(data)
    waits_line("select-while-restoring", beside, "the same beside a restore")
    beside = []
    with selecting(router, beside):
        for _ in range(ROUNDS):
            peer_messages(router)
    waits_line("select-while-telling", beside, f"the same beside {ROUNDS} snapshots for peers")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
