"""Several sources on one router, the guard between, and what users do by hand beside them."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.library.router.test_router_fork import in_child
from tests.models.found_workers import GuardModel, UnionModel
from tests.waiting import wait_until

from cachelb import Router
from cachelb_gateway.discovery import DiscoveryError, Findings, PolledWorkers, WorkerSource
from cachelb_gateway.discovery.guard import DropGuard

WORKERS = [f"http://gpu{n}:8000" for n in range(8)]
SETS = st.sets(st.sampled_from(WORKERS))


@given(
    wait_s=st.sampled_from([0.0, 4.0, 10.0]),
    answers=st.lists(st.tuples(st.integers(0, 12), SETS), max_size=30),
)
def test_the_guard_is_the_obvious_one(wait_s: float, answers: list[tuple[int, set[str]]]) -> None:
    guard, model, now_s, waits = DropGuard(wait_s), GuardModel(wait_s), 100.0, 0
    for pause_s, found in answers:
        now_s += pause_s
        waited = model.held_back_since
        assert guard.answer(found, now_s) == guard.held == model.answer(found, now_s)
        waits += waited is None and model.held_back_since is not None
        since = model.held_back_since
        assert guard.confirm_in_s(now_s) == (None if since is None else max(0.0, since + wait_s - now_s))
    assert guard.waits == waits


@given(st.lists(SETS, min_size=1, max_size=20), st.integers(1, 8))
def test_no_span_of_the_wait_loses_more_than_half(answers: list[set[str]], every_s: int) -> None:
    guard = DropGuard(1000.0)
    guard.answer(WORKERS, 0.0)
    for n, found in enumerate(answers):
        guard.answer(found, n * every_s)
    assert len(guard.held & set(WORKERS)) >= len(WORKERS) / 2


def test_the_guard_forgets_what_it_cannot_keep() -> None:
    guard = DropGuard(3600.0)
    for n in range(30):
        guard.answer([f"w{n}-{i}" for i in range(2000)], float(n))
        assert len(guard.held) + len(guard._dropped) <= 3 * 4096
    assert guard.confirm_in_s(math.inf) in (None, 0.0)


class Scripted(WorkerSource):
    """Finds what a test gives it."""

    def __init__(self, name: str = "scripted", **options: Any) -> None:
        super().__init__(name, **{"drop_wait_s": 0, **options})
        self.ready = threading.Event()

    async def follow(self, findings: Findings, /) -> None:
        self._loop, self._findings = asyncio.get_running_loop(), findings
        self.ready.set()
        await asyncio.Event().wait()

    def finds(self, workers: Iterable[str]) -> None:
        async def give() -> None:
            self._findings.found(workers)

        assert self.ready.wait(60)
        asyncio.run_coroutine_threadsafe(give(), self._loop).result(60)


STEPS = st.one_of(
    st.tuples(st.just("finds"), st.integers(0, 2), SETS),
    st.tuples(st.just("leaves"), st.integers(0, 2), st.none()),
    st.tuples(st.just("adds"), st.none(), st.sampled_from(WORKERS)),
    st.tuples(st.just("syncs"), st.none(), SETS),
)


@settings(deadline=None)
@given(st.lists(STEPS, max_size=25))
def test_a_router_has_the_union_of_sources_and_hand(steps: list[tuple[str, Any, Any]]) -> None:
    """Without threads: what their steps do to the router."""
    router, model, sources = Router[str](), UnionModel(), [object(), object(), object()]
    for what, which, value in steps:
        match what:
            case "finds":
                router.discovered.sync(router, sources[which], value, {})
                model.finds(which, value)
            case "leaves":
                router.discovered.leave(sources[which])
                model.leaves(which)
            case "adds":
                router.add_worker(value)
                model.adds(value)
            case _:
                router.sync_workers(value)
                model.syncs(value)
        assert set(router.keys()) == model.keys()
    router.validate()


@pytest.fixture
def router() -> Iterator[Router[str]]:
    with Router[str](WORKERS[:1]) as made:
        yield made


def test_no_source_removes_the_worker_of_another_or_of_the_user(router: Router[str]) -> None:
    a, b = Scripted("a"), Scripted("b", worker_options={"role": "prefill", "weight": 2.0})
    router.attach(a)
    router.attach(b)
    a.finds(WORKERS[:3])
    b.finds(WORKERS[2:5])
    assert router.keys() == WORKERS[:5]
    assert {row.key: row.role for row in router.stats().workers if row.weight == 2} == dict.fromkeys(
        WORKERS[3:5], "prefill"
    )
    a.finds([])
    assert router.keys() == [WORKERS[0], *WORKERS[2:5]]
    b.finds([])
    assert router.keys() == WORKERS[:1]


def test_what_is_removed_by_hand_comes_back_and_readiness_stays(router: Router[str]) -> None:
    source = Scripted()
    router.attach(source)
    source.finds(WORKERS[:3])
    router.set_ready(WORKERS[2], False)
    router.remove_worker(WORKERS[1])
    wait_until(lambda: router.keys() == [WORKERS[0], WORKERS[2], WORKERS[1]])
    source.finds([*WORKERS[:3], WORKERS[1] + "/"])
    assert {row.key for row in router.stats().workers if row.state == "not ready"} == {WORKERS[2]}


def test_detached_sources_leave_their_workers_to_the_next(router: Router[str]) -> None:
    first, second = Scripted(), Scripted()
    router.attach(first)
    with pytest.raises(RuntimeError, match="this Scripted runs already: make one Scripted per router"):
        router.attach(first)
    first.finds(WORKERS[:4])
    router.detach(first)
    assert router.keys() == WORKERS[:4]
    assert router.stats().discovery == ()
    router.attach(second)
    second.finds(WORKERS[:3])
    second.finds(WORKERS[:2])
    assert router.keys() == [*WORKERS[:2], WORKERS[3]]
    router.attach(first)
    first.ready.clear()
    router.sync_workers(WORKERS[:1])
    assert router.keys() == WORKERS[:2]


def test_workers_that_a_request_waits_for_wake_it() -> None:
    async def late() -> str:
        with Router[str]() as router:
            source = Scripted()
            router.attach(source)
            asked = asyncio.create_task(router.select_worker_when_ready(timeout_s=60, by_load=True))
            await asyncio.sleep(0)
            await asyncio.to_thread(source.finds, WORKERS[:1])
            return (await asked).worker

    assert asyncio.run(late()) == WORKERS[0]


class Failing(PolledWorkers):
    most_backoff_s = 0.02

    def __init__(self) -> None:
        super().__init__("failing")
        self.looks = 0

    async def look(self) -> tuple[list[str], float]:
        self.looks += 1
        match self.looks % 4:
            case 1:
                raise DiscoveryError("no answer")
            case 2:
                raise ConnectionRefusedError("secret")
            case 3:
                return [3, 4], 0.0  # type: ignore[list-item]
        return WORKERS[:2], 0.0


def test_failures_of_a_source_are_counted_and_end_nothing(
    router: Router[str], caplog: pytest.LogCaptureFixture
) -> None:
    source = Failing()
    router.attach(source)
    wait_until(lambda: source.stats().answers >= 2)
    assert source.stats().failures >= 4
    assert router.keys() == WORKERS[:2]
    assert "no answer" in caplog.text
    assert "ConnectionRefusedError" in caplog.text
    assert "secret" not in caplog.text


class Crashing(Scripted):
    crashes = 0

    async def follow(self, findings: Findings, /) -> None:
        self.crashes += 1
        if self.crashes == 1:
            raise KeyError(self.name)
        await super().follow(findings)


def test_a_crash_of_a_source_starts_it_again(router: Router[str], caplog: pytest.LogCaptureFixture) -> None:
    source = Crashing()
    router.attach(source)
    source.finds(WORKERS[:2])
    assert router.keys() == WORKERS[:2]
    assert source.stats().failures == 1
    assert caplog.text.count("scripted has failed; it is started again") == 1


def test_a_router_of_objects_is_refused_when_attached() -> None:
    router = Router[dict[str, str]](key=lambda worker: worker["id"])
    with pytest.raises(TypeError):
        router.attach(Scripted())
    assert router.stats().discovery == ()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # threads at a fork are what this is about
def test_a_forked_child_goes_on_with_what_its_parent_found(router: Router[str]) -> None:
    source = Scripted(drop_wait_s=60)
    router.attach(source)
    source.finds(WORKERS[:4])
    source.ready.clear()

    def child() -> None:
        router.select_worker(by_load=True).on_complete()
        source.finds(WORKERS[1:2])
        assert router.keys() == WORKERS[:4], "most workers gone: it waits, as its parent would"
        assert router.stats().discovery[0].waits == 1
        source.finds(WORKERS[:3])
        assert router.keys() == WORKERS[:3]
        router.close()

    in_child(child)
    source.ready.set()
    source.finds(WORKERS[:5])
    assert router.keys() == WORKERS[:5]


def test_threads_end_with_the_router() -> None:
    with Router[str]() as router:
        router.attach(Scripted())
        wait_until(lambda: any(thread.name == "cachelb-discovery" for thread in threading.enumerate()))
    assert not any(thread.name.startswith("cachelb-discovery") for thread in threading.enumerate())
