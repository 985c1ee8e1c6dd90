"""Threads that write to what others pass as arguments, and threads that change one router.

With a GIL, most of this cannot go wrong. Without one, nothing but the extension orders these threads.
"""

from __future__ import annotations

import gc
import os
import random
import struct
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tests.library.index.test_threads import run
from tests.models.loads import indexed_blocks

from cachelb import Health, Router, UnknownWorkerError
from cachelb.index import BlockTracker, hash_blocks

BLOCK = 4
LENGTH = 2_000
FULL = range(2**31, 2**31 + LENGTH)
"""Numbers that Python makes anew every time, so that one that was taken out of a list is freed."""
EITHER = (0x01010101_01010101, 0xFEFEFEFE_FEFEFEFE)
"""Two numbers without a common byte, so that half of one beside half of the other is neither."""

pytestmark = pytest.mark.usefixtures("frequent_switches")


def beside(write: Callable[[random.Random], None], reads: Sequence[Callable[[], None]], *, rounds: int) -> None:
    """Run each of `reads` `rounds` times, while another thread calls `write`."""
    left = [threading.Event() for _ in reads]

    def work(number: int) -> None:
        if number >= len(reads):
            rng = random.Random(1)
            while not all(done.is_set() for done in left):
                write(rng)
            return
        try:
            for _ in range(rounds):
                reads[number]()
        finally:
            left[number].set()

    run(work, threads=len(reads) + 1)


def at_a_time(work: Callable[[int, int], None], *, turns: int) -> None:
    """Call `work` with 0 and 1 on two threads that wait for each other before each turn, awake, and so begin as one."""
    at = [0, 0]

    def body(number: int) -> None:
        try:
            for turn in range(turns):
                at[number] = turn + 1
                while at[1 - number] <= turn:
                    pass
                work(number, turn)
        finally:
            at[number] = turns

    run(body, threads=2)


def test_the_extension_leaves_the_interpreter_without_a_gil() -> None:
    asked = "import sys, cachelb._core; print(getattr(sys, '_is_gil_enabled', lambda: True)())"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON_GIL"}
    found = subprocess.run(
        [sys.executable, "-W", "error", "-c", asked], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == str(not sysconfig.get_config_var("Py_GIL_DISABLED"))


def test_a_list_that_others_resize_is_read_as_one_that_existed() -> None:
    tokens = list(FULL)
    tracker = BlockTracker(block_size=BLOCK)
    router = Router(["gpu0"], block_size=BLOCK, seed=1)
    hashes = hash_blocks(FULL, BLOCK)

    def write(rng: random.Random) -> None:
        # After each step, the list holds the first so many numbers.
        tokens[:] = range(FULL.start, FULL.start + rng.randrange(LENGTH))
        tokens.clear()
        tokens.extend(range(FULL.start, FULL.start + rng.randrange(LENGTH)))
        del tokens[rng.randrange(LENGTH) :]

    def hash_them() -> None:
        found = hash_blocks(tokens, BLOCK)
        assert np.array_equal(found, hashes[: len(found)])

    def record() -> None:
        assert tracker.record_request(tokens, "gpu0") <= LENGTH // BLOCK
        assert tracker.overlaps(tokens).keys() <= {"gpu0"}

    def select() -> None:
        with router.select_worker(tokens=tokens) as decision:
            assert decision.matched_tokens <= decision.prompt_tokens <= LENGTH

    beside(write, [hash_them, record, select], rounds=300)
    # All of it is one prompt.
    assert tracker.block_count() == tracker.overlaps(FULL).get("gpu0", 0)
    assert router.stats().index_blocks <= LENGTH // BLOCK
    tracker.validate()
    router.validate()


@pytest.mark.parametrize("dtype", ["uint32", "int64"])
@pytest.mark.parametrize("step", [1, 2], ids=["contiguous", "strided"])
def test_every_token_and_hash_of_a_buffer_that_others_write_is_one_that_was_there(dtype: str, step: int) -> None:
    values = [value % 2**32 for value in EITHER]
    memory = np.full(LENGTH * step, values[0], dtype)
    tokens = memory[::step]
    possible = [hash_blocks([value] * LENGTH, 1, scheme="positional") for value in values]
    router = Router(["gpu0"], block_size=BLOCK, seed=1)

    hashes = np.full(64, EITHER[0], np.uint64)
    tracker = BlockTracker()

    def write(rng: random.Random) -> None:
        memory[rng.randrange(LENGTH) :].fill(values[rng.randrange(2)])
        hashes[rng.randrange(64) :].fill(EITHER[rng.randrange(2)])

    def hash_them() -> None:
        found = hash_blocks(tokens, 1, scheme="positional")
        assert np.all((found == possible[0]) | (found == possible[1]))

    def select() -> None:
        router.select_worker(tokens=tokens, dry_run=True)

    def store() -> None:
        tracker.store("gpu0", hashes)
        assert tracker.overlaps_of_hashes(hashes).keys() <= {"gpu0"}

    beside(write, [hash_them, hash_them, select, store, store], rounds=300)
    tracker.remove("gpu0", EITHER)
    assert tracker.block_count() == 0
    tracker.validate()


def stored(name: int, first: int) -> bytes:
    """Encode a batch of one event: a block of four tokens, in msgpack."""
    tokens = b"".join(b"\xce" + struct.pack(">I", token) for token in range(first, first + BLOCK))
    event = b"\x95\xabBlockStored\x91\xcf" + struct.pack(">Q", name) + b"\xc0\x94" + tokens + bytes([BLOCK])
    return b"\x92\x01\x91" + event


def test_events_in_a_buffer_that_others_write_are_applied() -> None:
    router = Router(["gpu0"], policy="kv-aware", block_size=BLOCK, seed=1)
    whole = [stored(number, number % 2**32) for number in EITHER]
    payload = bytearray(whole[0])

    def write(rng: random.Random) -> None:
        payload[:] = whole[rng.randrange(2)]

    def apply() -> None:
        assert router.event_sink.apply_events("gpu0", payload) == 1
        assert router.event_sink.apply_events("gpu0", memoryview(payload)) == 1

    beside(write, [apply, apply, apply], rounds=300)
    router.validate()


def test_threads_that_bring_a_workers_first_events_share_its_streams() -> None:
    keys = [f"gpu{number}" for number in range(60)]
    router = Router(keys, policy="kv-aware", block_size=BLOCK, seed=1)

    def work(number: int, turn: int) -> None:
        assert router.event_sink.apply_events(keys[turn], stored(number, 1_000 * number)) == 1

    at_a_time(work, turns=len(keys))
    assert [indexed_blocks(router, key) for key in keys] == [2] * len(keys)
    streams = [worker.kv_events for worker in router.stats().workers]
    assert [stream and stream.messages for stream in streams] == [2] * len(keys)


def test_workers_of_one_model_that_are_added_at_a_time_share_its_index() -> None:
    router: Router[str] = Router(block_size=BLOCK, seed=1)

    def key(number: int, turn: int) -> str:  # which differ in credentials
        return f"http://user:secret{number}@host{turn}"

    def work(number: int, turn: int) -> None:
        router.add_worker(key(number, turn), models=[f"model{turn}"])

    at_a_time(work, turns=60)
    assert len(router.keys()) == 120
    assert router.stats().models == sorted(f"model{turn}" for turn in range(60))
    for turn in range(60):
        for each in (key(0, turn), key(1, turn)):
            assert router.select_worker(tokens=[1], model=f"model{turn}", among=[each]).worker == each
    router.validate()


class Pod:
    """A worker that keeps its router, and so is garbage only with it."""

    def __init__(self, url: str, router: Router[Any]) -> None:
        self.url, self.router = url, router


class Traffic:
    """Changes one router and uses it, at random."""

    def __init__(self, router: Router[Any], always: Sequence[Pod], seed: int) -> None:
        self.router, self.always, self.rng = router, always, random.Random(seed)
        self.open: list[Any] = []

    def change(self) -> None:
        router, rng = self.router, self.rng
        key = f"pod{rng.randrange(8)}"
        pods = [Pod(f"pod{number}", router) for number in range(rng.randrange(8))]
        models = rng.choice([(), ("m",)])
        changes: list[Callable[[], object]] = [
            lambda: router.add_worker(Pod(key, router), models=models),
            lambda: router.add_worker(Pod(key, router), dp_size=3),
            lambda: router.remove_worker(key, drain=rng.random() < 0.5),
            lambda: router.set_ready(key, rng.random() < 0.7),
            lambda: router.load_sink.update_load(key, running=rng.randrange(4), waiting=0),
            lambda: router.sync_workers([*self.always, *pods]),
        ]
        try:
            rng.choice(changes)()
        except UnknownWorkerError:
            assert key not in {pod.url for pod in self.always}

    def use(self) -> None:
        rng = self.rng
        tokens = [rng.randrange(3)] * rng.randrange(40)
        self.open.append(self.router.select_worker(tokens=tokens, model=rng.choice([None, "m"])))
        if len(self.open) > 8:
            decision = self.open.pop(rng.randrange(8))
            # The last of them drops it.
            rng.choice([decision.on_complete, decision.cancel, lambda: decision.on_error(503), lambda: None])()


def test_threads_that_change_and_use_one_router_leave_it_sound_and_idle() -> None:
    router: Router[Any] = Router(block_size=BLOCK, seed=1, health=Health(breaker_failures=0))
    always = [Pod(f"always{number}", router) for number in range(3)]
    router.sync_workers(always)
    traffic = [Traffic(router, always, seed) for seed in range(6)]

    def work(number: int) -> None:
        for turn in range(150):
            traffic[number].change() if number < 2 else traffic[number].use()
            if number == 1 and turn % 25 == 0:
                gc.collect()

    run(work, threads=len(traffic))
    router.validate()
    for each in traffic:
        for decision in each.open:
            decision.on_complete()
    router.sync_workers(always)
    assert router.workers() == always
    assert router.loads() == {pod.url: 0 for pod in always}
    assert router.stats().open_requests == 0
    router.validate()
