"""Eight threads on one tracker: every thread gets its work done, and the tracker is sound and exact at the end."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from cachelb.index import BlockTracker, hash_blocks

THREADS = 8

pytestmark = pytest.mark.usefixtures("frequent_switches")


def run(work: Callable[[int], None], *, threads: int = THREADS) -> None:
    """Run `work` on threads that start together; the first error of any is raised."""
    barrier = threading.Barrier(threads)
    errors: list[BaseException] = []

    def body(number: int) -> None:
        try:
            barrier.wait()
            work(number)
        except BaseException as error:  # noqa: BLE001 - raised again below, where the test sees it
            errors.append(error)

    running = [threading.Thread(target=body, args=(number,), daemon=True) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in running), "a thread is stuck"
    if errors:
        raise errors[0]


def test_any_mix_of_calls_leaves_a_sound_tracker_and_starves_nobody() -> None:
    tracker = BlockTracker(block_size=4, max_blocks_per_worker=200)
    quota, done = 1500, [0] * THREADS

    def work(number: int) -> None:
        rng = random.Random(number)
        for _ in range(quota):
            start, length = rng.randrange(3), rng.randrange(120)
            tokens = [start] * (length // 2) + [rng.randrange(2)] * (length // 2)
            worker = f"w{rng.randrange(12)}"
            kind = rng.randrange(20)
            if kind < 8:
                assert tracker.record_request(tokens, worker) <= len(tokens) // 4
            elif kind < 14:
                match = tracker.find_best_worker(tokens)
                assert match is None or 0 < match.matched_blocks <= match.total_blocks == len(tokens) // 4
            elif kind < 16:
                overlaps = tracker.overlaps(tokens, among=[worker])
                assert overlaps.keys() <= {worker}
            elif kind == 16:
                tracker.remove_worker(worker)
            elif kind == 17:
                tracker.remove(worker, hash_blocks(tokens, 4)[1:3])
            elif kind == 18:
                tracker.evict_worker(worker, 20)
                tracker.clear(f"w{rng.randrange(12)}")
            else:
                BlockTracker.restore(tracker.snapshot()).validate()
            assert tracker.block_count(worker) <= 200
            done[number] += 1

    run(work)
    assert done == [quota] * THREADS
    tracker.validate()
    for worker in tracker.workers():
        tracker.remove_worker(worker)
    assert (tracker.workers(), tracker.block_count(), tracker.overlaps([0] * 40)) == ([], 0, {})
    tracker.validate()


def test_expiry_beside_lookups_and_records_is_sound() -> None:
    now = [0.0]
    tracker = BlockTracker(block_size=1, clock=lambda: now[0])

    def work(number: int) -> None:
        for step in range(1000):
            if number == 0:
                now[0] += 0.1
            tracker.record_request([number % 3, step % 50, number], f"w{number % 4}", ttl_s=1.0)
            assert tracker.overlaps([number % 3], among=[f"w{number % 4}"]).get(f"w{number % 4}", 0) <= 1

    run(work)
    tracker.validate()
    now[0] += 2.0
    assert (tracker.overlaps([0]), tracker.block_count()) == ({}, 0)
    tracker.validate()


def test_a_large_call_lets_other_threads_run_and_they_see_whole_states() -> None:
    tracker = BlockTracker(block_size=1, max_blocks_per_worker=1_000_000)
    large = list(range(150_000))
    seen: set[int] = set()

    def work(number: int) -> None:
        for _ in range(6):
            if number == 0:
                tracker.record_request(large, "w")
                tracker.clear("w")
            else:
                for _ in range(20):
                    seen.add(tracker.overlaps(large).get("w", 0))

    run(work, threads=3)
    assert seen <= {0, 150_000}
    tracker.validate()
