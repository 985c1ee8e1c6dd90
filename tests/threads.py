"""Threads beside a test."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

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
