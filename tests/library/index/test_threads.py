"""A call that takes long beside calls of other threads; `rust/core/tests/tracker_threads.rs` has any mix of them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from cachelb.index import BlockTracker

pytestmark = pytest.mark.usefixtures("frequent_switches")


def run(work: Callable[[int], None], *, threads: int = 8) -> None:
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
