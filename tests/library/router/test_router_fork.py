"""Forks: the child begins without bookings, logs it, and never touches the parent's."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from tests.models.loads import indexed_blocks
from tests.routers import flat_router
from tests.threads import beside

import cachelb
from cachelb import Decision, Router
from cachelb.policies import Learned

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="there is no fork"),
    # Forking beside threads is what is tested here.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]


def in_child(check: Callable[[], None], beside: Callable[[], None] = lambda: None) -> None:
    """Run `check` in a forked child and `beside` in this process, and fail with what either raised."""
    reading, writing = os.pipe()
    # Garbage of other tests is collected in the parent: gRPC's objects hang when the child of a fork collects them.
    gc.collect()
    child = os.fork()
    if child == 0:
        failure = b""
        try:
            os.close(reading)
            check()
        except BaseException:  # noqa: BLE001 - reported to the parent
            failure = traceback.format_exc().encode()
        finally:
            with contextlib.suppress(OSError):
                os.write(writing, failure)
            os._exit(1 if failure else 0)
    os.close(writing)
    try:
        beside()
    finally:
        with os.fdopen(reading, "rb") as pipe:
            failure = pipe.read()
        _, status = os.waitpid(child, 0)
        assert (status, failure.decode()) == (0, "")


def fleet() -> Router[str]:
    router = cachelb.Router(["a"], seed=1, pairs=cachelb.Pairs(uncached_token_threshold=0))
    router.add_worker("p", role="prefill", weight=2.0, kv_blocks=7)
    router.add_worker("d", role="decode", dp_size=2, models=["m"])
    router.add_worker("off")
    router.set_ready("off", False)
    return router


def test_the_child_begins_with_an_empty_book_and_keeps_what_workers_hold(caplog: pytest.LogCaptureFixture) -> None:
    router = fleet()
    held: list[Decision[str]] = [router.select_worker(tokens=range(64)) for _ in range(3)]
    loads, ids = router.loads(), {decision.id for decision in held}

    def check() -> None:
        assert set(router.loads().values()) == {0}
        stats = router.stats()
        assert (stats.open_requests, stats.decisions, sum(stats.endings.values())) == (0, {}, 0)
        assert "was forked: its router starts with an empty book (3 requests stay with the parent)" in caplog.text
        own = router.select_worker(tokens=range(64))
        assert own.matched_tokens == 48
        assert own.id not in ids
        booked = router.loads()
        for decision in held:
            assert not decision.is_open
            decision.on_first_token()
            decision.on_complete()
        held.clear()
        gc.collect()
        assert router.loads() == booked
        assert sum(router.stats().endings.values()) == 0
        own.on_complete()
        router.validate()

    with caplog.at_level(logging.WARNING, "cachelb.router"):
        in_child(check)
    assert router.loads() == loads
    assert all(decision.is_open for decision in held)
    assert {decision.id for decision in held} == ids
    for decision in held:
        decision.on_complete()
    assert set(router.loads().values()) == {0}


class Counting:
    """A source that only counts its starts."""

    def __init__(self) -> None:
        self.starts: list[int] = []

    def start(self, router: Router[str], /) -> None:
        self.starts.append(os.getpid())
        if len(self.starts) > 1 and router.policy.name == "random":
            raise OSError("no thread is to be had")

    def stop(self) -> None:
        pass


USES: dict[str, Callable[[Router[str]], object]] = {
    "select_worker": lambda router: router.select_worker(by_load=True),
    "select_pair": lambda router: router.select_pair(dry_run=True, by_load=True),
    "select_batch": lambda router: router.select_batch([{"by_load": True}]),
    "explain": lambda router: router.explain(),
    "stats": lambda router: router.stats(),
    "attach": lambda router: router.attach(Counting()),
}


@pytest.mark.parametrize("use", USES)
def test_sources_start_in_a_child_that_uses_the_router_and_not_before(use: str) -> None:
    """Most children run another program: a thread of theirs could keep them from it."""
    router, source = cachelb.Router(["a"]), Counting()
    router.attach(source)

    def check() -> None:
        assert source.starts == [os.getppid()]
        for _ in range(2):
            USES[use](router)
            assert source.starts == [os.getppid(), os.getpid()]

    in_child(check)
    assert source.starts == [os.getpid()]


def test_a_source_that_cannot_start_in_a_child_fails_no_selection(caplog: pytest.LogCaptureFixture) -> None:
    router, broken, sound = cachelb.Router(["a"], policy="random"), Counting(), Counting()
    router.attach(broken)
    router.attach(sound)

    def check() -> None:
        assert router.select_worker(by_load=True).worker == "a"
        assert len(broken.starts) == len(sound.starts) == 2
        assert caplog.text.count("Counting could not start anew in process") == 2
        assert "no thread is to be had" in caplog.text

    in_child(check)


def test_children_and_their_parent_give_out_different_ids() -> None:
    router = cachelb.Router(["a"], seed=1)
    reading, writing = os.pipe()

    def tell() -> None:
        os.write(writing, router.select_worker(by_load=True).id.encode() + b"\n")

    for _ in range(2):
        in_child(tell)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        ids = pipe.read().split()
    assert len({*ids, router.select_worker(by_load=True).id}) == 3


def check_loads(router: Router[str], held: list[Decision[str]]) -> None:
    own = [router.select_worker(tokens=range(i, i + 48), among=["a"]) for i in range(25)]
    assert indexed_blocks(router, "a") == 3, "as many as its cache has"
    for decision in held:
        decision.on_complete()
    held.clear()
    gc.collect()
    assert router.loads()["a"] == 25
    for decision in own:
        decision.on_complete()


@pytest.mark.parametrize("anew", [False, True], ids=["kept", "built anew"])
def test_a_fork_beside_busy_threads_leaves_the_child_a_whole_fleet(anew: bool) -> None:
    """A fleet whose lock stays taken is built anew from the registered workers."""
    router = fleet()
    for number in range(40):
        router.add_worker(f"w{number}")
    router.load_sink.learn_worker("a", kv_blocks=3)
    held = [router.select_worker(tokens=range(640)) for _ in range(20)]
    keys, stop = router.keys(), threading.Event()
    before = {row.key: (row.role, row.weight, row.state) for row in router.stats().workers}
    others = ["a", *[f"w{number}" for number in range(40)]]

    def hammer(_: int) -> None:
        while not stop.is_set():
            router.select_worker(tokens=range(640)).cancel()
            router.validate()

    def check() -> None:
        if anew:
            assert router._fleet.after_fork(anew=True) is None
        assert router.keys() == keys
        after = {row.key: (row.role, row.weight, row.state) for row in router.stats().workers}
        assert after == before
        assert set(router.loads().values()) == {0}
        check_loads(router, held)
        pair = router.select_pair(tokens=range(64), model="m", exclude=others)
        assert pair.prefill is not None
        assert (pair.prefill.key, pair.decode.key) == ("p", "d")
        with pytest.raises(cachelb.NoWorkerAvailable):
            router.select_worker(exclude=others, by_load=True)
        pair.cancel()
        assert set(router.loads().values()) == {0}
        router.validate()

    with beside(hammer, range(4), stop):
        for _ in range(3):
            in_child(check)
    for decision in held:
        assert decision.is_open
        decision.on_complete()
    assert set(router.loads().values()) == {0}
    router.validate()


def test_a_round_of_training_stays_with_the_parent() -> None:
    options: dict[str, Any] = {"n_min": 300, "theta": 300, "training": "background"}
    router = flat_router(["a", "b"], options, seed=1, policy="learned")
    policy = Learned(seed=1, **options)

    def drive(begin: int, requests: int) -> None:
        for i in range(begin, begin + requests):
            for decision in (
                router.select_worker(tokens=range(i, i + 64 + i % 90)),
                policy.select_worker(["a", "b"], tokens=range(i, i + 64 + i % 90)),
            ):
                decision.on_first_token()
                decision.on_complete()

    def training() -> bool:
        return router.policy.learned_stats()[0].training and policy.learned_stats().training

    i = 0
    while not training():
        assert i < 100_000
        drive(i, 1)
        i += 1

    def check() -> None:
        drive(0, 1_000)
        router.validate()
        policy.validate()
        # The child's own rounds, on the child's own samples.
        for stats in (*router.policy.learned_stats(), policy.learned_stats()):
            assert stats.pooled <= stats.samples
            assert stats.rounds["failed"] == 0
        gc.collect()

    in_child(check)
    drive(0, 10)
    router.validate()
