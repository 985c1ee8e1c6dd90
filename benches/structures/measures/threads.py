"""Calls per second of several threads of one process on one object.

Threads of an interpreter with a global lock take turns: the rates show the cost of that, not the gain of more cores.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benches.structures.indexes import OWN, Index
from benches.structures.prompts import WORKERS, Prompt, prompts
from benches.structures.rows import Row

from cachelb import Router

THREADS = (1, 2, 4, 8, 16)
_LENGTH = 2_048
_PROMPTS = 256
_ROUNDS = 3
_CALLS_PER_CALL = 8


def measure(calls: int, makers: Sequence[type[Index]] = OWN) -> Iterator[Row]:
    """Match, and select, from several threads."""
    given = prompts(_PROMPTS, _LENGTH, seed=6)
    for prompt in given:
        _ = prompt.array, prompt.text
    contenders: dict[str, Callable[[Prompt], object]] = {}
    for make in makers:
        index: Any = make()
        for i, prompt in enumerate(given):
            index.record(prompt, i % WORKERS)
        contenders[f"{index.name}: match"] = index.match
    contenders["cachelb"] = _select()
    locked = getattr(sys, "_is_gil_enabled", lambda: True)()
    note = f"prompts of {_LENGTH:,} tokens, {'with' if locked else 'without'} a global interpreter lock"
    for threads in THREADS:
        for name, rate in _rates(contenders, given, threads, calls * _CALLS_PER_CALL).items():
            yield Row(f"threads/{threads}", name, rate, None, unit="calls/s", note=note)


def _select() -> Callable[[Prompt], object]:
    router = Router([f"http://w{worker}:8000" for worker in range(WORKERS)], seed=1)

    def select(prompt: Prompt) -> None:
        with router.select_worker(tokens=prompt.tokens):
            pass

    return select


def _rates(
    contenders: Mapping[str, Callable[[Prompt], object]], given: list[Prompt], threads: int, calls: int
) -> dict[str, float]:
    """Return calls per second of the fastest of some rounds, in turns."""
    rates = dict.fromkeys(contenders, 0.0)
    for _ in range(_ROUNDS):
        for name, call in contenders.items():
            rates[name] = max(rates[name], _rate(call, given, threads, calls))
    return rates


def _rate(call: Callable[[Prompt], object], given: list[Prompt], threads: int, calls: int) -> float:
    each = max(1, calls // threads)
    ready = threading.Barrier(threads + 1)

    def work(first: int) -> None:
        ready.wait()
        for i in range(first, first + each):
            call(given[i % len(given)])

    workers = [threading.Thread(target=work, args=(number * each,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    ready.wait()
    begin = time.perf_counter()
    for worker in workers:
        worker.join()
    return each * threads / (time.perf_counter() - begin)
