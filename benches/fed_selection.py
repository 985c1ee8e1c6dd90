"""The cost of a selection while engines announce blocks, beside the cost while they do not.

python benches/fed_selection.py

Idle and busy stretches take turns in one run, so that both see the same machine. Selections are paced too: a loop that
never lets the GIL go would keep the announcements waiting. Prints a row of JSON per figure, as the Rust benches do.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from typing import Any

import numpy as np

from cachelb import Router
from cachelb_fakes.events import encode_batch, stored

WORKERS = [f"http://gpu{index}:8000" for index in range(64)]
BLOCK = 16
# A step of an engine: 16 prompts become a block longer, and 48 blocks of a new one are computed.
GROWING, PREFILLED = 16, 48
RATE = 100_000
PAUSE_S = 400e-6
STRETCHES, SELECTIONS, WARM_UP = 20, 400, 40
PROMPTS = 1_000
# Enough for twice the time that selections should take.
STEPS = int(2 * STRETCHES * SELECTIONS * (PAUSE_S + 200e-6) * RATE / (GROWING + PREFILLED))


def steps() -> list[tuple[str, bytes]]:
    """Encode the events of engines, a step of each in turn."""
    random = np.random.default_rng(3)
    names = itertools.count(1)
    growing: dict[str, list[int | None]] = {worker: [None] * GROWING for worker in WORKERS}
    kept: dict[str, Any] = {"extra_keys": None, "group_idx": 0, "kv_cache_spec_kind": "full_attention"}
    messages = []
    for worker in itertools.islice(itertools.cycle(WORKERS), STEPS):
        tokens = random.integers(0, 128_000, (GROWING + PREFILLED, BLOCK))
        new = list(itertools.islice(names, GROWING))
        pairs = zip(new, growing[worker], tokens, strict=False)
        events = [stored([name], row.tolist(), parent=parent, **kept) for name, parent, row in pairs]
        growing[worker] = [*new]
        events.append(stored(itertools.islice(names, PREFILLED), tokens[GROWING:].ravel().tolist(), **kept))
        messages.append((worker, encode_batch(events, ts=time.time())))
    return messages


def announce(router: Router[str], messages: list[tuple[str, bytes]], until: threading.Event) -> tuple[int, float]:
    """Apply messages at the rate until stopped. Returns the blocks applied and the seconds they took."""
    begin = time.perf_counter()
    blocks = 0
    while not until.is_set():
        worker, payload = messages.pop()
        assert router.event_sink.apply_events(worker, payload) == GROWING + 1
        blocks += GROWING + PREFILLED
        ahead = begin + blocks / RATE - time.perf_counter()
        if ahead > 0:
            time.sleep(ahead)
    return blocks, time.perf_counter() - begin


def select(router: Router[str], prompts: list[np.ndarray[tuple[int], np.dtype[np.uint32]]]) -> list[float]:
    """Time paced selections, in microseconds."""
    times = []
    for prompt in prompts:
        time.sleep(PAUSE_S)
        begin = time.perf_counter()
        request = router.select_worker(tokens=prompt)
        times.append((time.perf_counter() - begin) * 1e6)
        request.on_complete()
    return times[WARM_UP:]


def emit(what: str, unit: str, figures: tuple[float, float], n: int, note: str) -> None:
    """Print a row."""
    p50, p99 = figures
    row = {"id": f"python/fed_selection/{what}", "unit": unit, "p50": p50, "p99": p99, "n": n, "note": note}
    print(json.dumps(row))


def main() -> None:
    """Measure."""
    router = Router(WORKERS, policy="kv-aware", seed=1, hash_seed=1)
    messages = steps()[::-1]
    for _ in WORKERS:
        router.event_sink.apply_events(*messages.pop())
    random = np.random.default_rng(1)
    known = [random.integers(0, 128_000, 512, dtype=np.uint32) for _ in range(PROMPTS)]
    order = itertools.cycle(random.permutation(PROMPTS).tolist())
    times: dict[bool, list[float]] = {False: [], True: []}
    blocks, seconds = 0, 0.0
    for busy in itertools.islice(itertools.cycle((False, True)), 2 * STRETCHES):
        prompts = [known[at] for at in itertools.islice(order, SELECTIONS)]
        until = threading.Event()
        done: list[tuple[int, float]] = []
        thread = threading.Thread(target=lambda done=done, until=until: done.append(announce(router, messages, until)))
        if busy:
            thread.start()
        times[busy] += select(router, prompts)
        until.set()
        if busy:
            thread.join()
            blocks, seconds = blocks + done[0][0], seconds + done[0][1]
    figures = {}
    for busy, samples in times.items():
        samples.sort()
        figures[busy] = (samples[len(samples) // 2], samples[(len(samples) - 1) * 99 // 100])
        note = f"{blocks / seconds:,.0f} blocks/s announced meanwhile" if busy else "nothing announced meanwhile"
        what = f"{'busy' if busy else 'idle'}/{len(WORKERS)}/512"
        emit(what, "us", figures[busy], len(samples), f"512-token buffer, kv-aware, paced; {note}")
    ratio = figures[True][1] / figures[False][1]
    emit("p99-ratio", "x", (ratio, ratio), len(times[True]), "p99 busy by p99 idle, stretches in turn")


if __name__ == "__main__":
    main()
