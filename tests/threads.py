"""Threads beside a test."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tests.http_client import DEADLINE_S, complete

from cachelb_fakes import FakeFleet, FakeWorker

T = TypeVar("T")


@contextlib.contextmanager
def beside(work: Callable[[T], object], each: Collection[T], stop: threading.Event | None = None) -> Iterator[None]:
    """Work on each in a thread of its own meanwhile, until `stop` at most; the first error of any is raised."""
    with ThreadPoolExecutor(len(each)) as pool:
        working = [pool.submit(work, one) for one in each]
        try:
            yield
        finally:
            if stop is not None:
                stop.set()
    for done in working:
        done.result()


@contextlib.contextmanager
def one_runs_one_waits(fleet: FakeFleet, worker: FakeWorker, prompt: str) -> Iterator[None]:
    """Keep the only slot of a worker, and another request for it, until it is released."""
    worker.fail("stall", times=1, after_chunks=1)

    def ask(_: int) -> None:
        complete(worker.url, prompt, stream=True, max_tokens=16)

    with beside(ask, [0]):
        fleet.wait_for(lambda: worker.counts.faults["stall"] == 1, timeout_s=DEADLINE_S)
        with beside(ask, [1]):
            fleet.wait_for(lambda: (worker.counts.running, worker.counts.waiting) == (1, 1), timeout_s=DEADLINE_S)
            yield
            worker.release()
