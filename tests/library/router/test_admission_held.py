"""Held requests: their order, refusals, and that none is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.library.router.admitting import LONG, acquire, come, make, prompt, served, settle
from tests.threads import beside

import cachelb
from cachelb import Admission, Decision, NoWorkerAvailable, Overloaded, Pairs, Router
from cachelb.testing import ManualClock


@pytest.mark.parametrize(
    ("max_wait_s", "timeout_s", "reason"),
    [(0.02, None, "waited too long"), (LONG, 0.02, "deadline passed"), (0.02, LONG, "waited too long")],
)
async def test_one_that_waited_too_long_is_refused_and_says_how_long(
    max_wait_s: float, timeout_s: float | None, reason: str
) -> None:
    admission = make(max_wait_s=max_wait_s)
    blocker = await admission.acquire(tokens=prompt(0))
    with pytest.raises(Overloaded) as caught:
        await admission.acquire(tokens=prompt(1), timeout_s=timeout_s)
    error = caught.value
    assert (error.reason, error.reasons, error.status) == (reason, {"a": "full"}, 429)
    assert error.waited_s >= 0.02
    assert error.retry_after_s >= 1
    assert (len(admission), admission.router.loads()) == (0, {"a": 1})
    assert blocker.is_open


@pytest.mark.parametrize("max_wait_s", [0, 0.0])
async def test_nothing_is_held_without_a_wait(max_wait_s: float) -> None:
    admission = make(max_wait_s=max_wait_s)
    blocker = await admission.acquire(tokens=prompt(0))
    for call in (admission.acquire_nowait, admission.acquire_sync):
        with pytest.raises(Overloaded) as caught:
            call(tokens=prompt(1))
        assert caught.value.reason == "no room"
    with pytest.raises(Overloaded):
        await admission.acquire(tokens=prompt(1))
    assert blocker.is_open


async def test_one_whom_nobody_can_serve_is_told_at_once_and_while_it_waits_at_the_end() -> None:
    admission = make(max_wait_s=0.05)
    blocker = await admission.acquire(tokens=prompt(0))
    task = await come(admission, 1, tokens=prompt(1))
    admission.router.set_ready("a", False)
    with pytest.raises(NoWorkerAvailable) as caught:
        await task
    assert not isinstance(caught.value, Overloaded)
    assert caught.value.reasons == {"a": "not ready"}
    with pytest.raises(NoWorkerAvailable):
        await admission.acquire(tokens=prompt(2), timeout_s=LONG)
    assert blocker.is_open


@pytest.mark.parametrize("how", ["end", "cancel", "error", "abandon", "join", "ready", "remove"])
async def test_whatever_makes_room_releases(how: str) -> None:
    admission = make("a", "b")
    admission.router.set_ready("b", False)
    holder = [await admission.acquire(tokens=prompt(0))]
    task = await come(admission, 1, tokens=prompt(1))
    match how:
        case "end":
            holder[0].on_complete()
        case "cancel":
            holder[0].cancel()
        case "error":
            holder[0].on_error(500)
        case "abandon":
            holder.clear()
            gc.collect()
        case "join":
            admission.router.add_worker("c")
        case "ready":
            admission.router.set_ready("b", True)
        case _:
            admission.router.remove_worker("a")
            admission.router.add_worker("a")
    assert (await served([task]))[0].is_open


async def test_a_worker_that_rests_takes_requests_again_when_its_time_is_over_though_nobody_tells() -> None:
    clock = ManualClock()
    admission = make("a", "b", clock=clock)
    admission.router.select_worker(tokens=prompt(0), among=["b"]).on_error(429, retry_after_s=0.3)
    blocker = await admission.acquire(tokens=prompt(1), among=["a"])
    tasks = [await come(admission, at + 1, tokens=prompt(at + 2)) for at in range(2)]
    clock.advance(0.51)
    async with asyncio.timeout(LONG):
        await asyncio.wait(tasks, return_when="FIRST_COMPLETED")
    assert (tasks[0].result().worker, blocker.is_open) == ("b", True)
    tasks[1].cancel()
    await settle()


async def test_a_report_of_an_idle_engine_releases_nobody_beyond_the_bound() -> None:
    # Elsewhere a stale report of an empty queue released hundreds at once.
    admission = make()
    blocker = await admission.acquire(tokens=prompt(0))
    tasks = [await come(admission, at + 1, tokens=prompt(at + 1)) for at in range(100)]
    admission.router.load_sink.update_load("a", running=0, waiting=0, kv_usage=0.0)
    await settle()
    assert (len(admission), admission.router.loads()) == (100, {"a": 1})
    blocker.on_first_token()
    await settle()
    assert len(admission) == 99
    for task in tasks:
        task.cancel()
    await settle()


async def test_prompts_longer_than_the_bound_keep_every_worker_busy() -> None:
    # Elsewhere a bound below the length of prompts let a fleet run dry.
    admission = make("a", "b", requests=None, tokens=1000)
    tasks = [asyncio.create_task(acquire(admission, tokens=prompt(at, 5000))) for at in range(10)]
    for _ in range(8):
        await settle()
        going = [task.result() for task in tasks if task.done() and task.result().is_open]
        assert {decision.worker for decision in going} == {"a", "b"}
        going[0].on_complete()
    assert [decision.is_open for decision in await served(tasks)].count(True) == 2


async def test_one_that_answers_after_its_deadline_is_refused_and_the_next_one_goes() -> None:
    clock = ManualClock()
    admission = make(clock=clock)
    blocker = await admission.acquire(tokens=prompt(0))
    late = await come(admission, 1, tokens=prompt(1), timeout_s=30)
    other = await come(admission, 2, tokens=prompt(2))
    blocker.on_first_token()  # it is called, and answers half a minute later
    clock.advance(31)
    with pytest.raises(Overloaded, match="deadline passed"):
        await late
    assert (await served([other]))[0].is_open
    assert admission.router.loads() == {"a": 2}


async def test_a_block_that_is_left_ends_the_request() -> None:
    admission = make()
    async with admission.acquire(tokens=prompt(0)):
        assert admission.router.loads() == {"a": 1}
    assert admission.router.loads() == {"a": 0}
    acquisition = admission.acquire(tokens=prompt(0))
    decision = await acquisition.__aenter__()
    await acquisition.__aexit__(ConnectionError, ConnectionError("gone"), None)
    assert not decision.is_open
    assert admission.router.stats().endings["failed"] == 1


async def test_a_pair_waits_for_room_where_its_prompt_is_computed_and_both_halves_are_booked_or_neither() -> None:
    router: Router[str] = Router(seed=1, pairs=Pairs(uncached_token_threshold=1))
    for worker, role in (("p", "prefill"), ("d", "decode")):
        router.add_worker(worker, role=role)  # type: ignore[arg-type]
    admission = Admission(router, max_pending_requests=1, max_pending_tokens=None, max_wait_s=LONG)
    first = await admission.acquire_pair(tokens=prompt(0))
    assert router.loads() == {"p": 1, "d": 1}

    async def pair(number: int) -> str:
        async with admission.acquire_pair(tokens=prompt(number)) as held:
            assert held.prefill is not None
            return held.prefill.worker + held.decode.worker

    tasks = [asyncio.create_task(pair(at)) for at in (1, 2)]
    await settle()
    assert (len(admission), router.loads()) == (2, {"p": 1, "d": 1})
    tasks[1].cancel()
    first.on_prefilled()
    async with asyncio.timeout(LONG):
        assert await tasks[0] == "pd"
    assert (len(admission), router.loads()) == (0, {"p": 0, "d": 1})


@pytest.mark.parametrize(
    ("replicas", "is_sharing", "room"), [(1, False, 4), (2, False, 2), (9, False, 1), (2, True, 4)]
)
def test_several_routers_share_the_bounds_unless_each_counts_what_all_booked(
    replicas: int, is_sharing: bool, room: int
) -> None:
    router: Router[str] = Router(["a"], replicas=replicas)
    if is_sharing:
        router._fleet.share(1, 60.0, 1 << 20)
    admission = Admission(router, max_pending_requests=4, max_pending_tokens=None, max_wait_s=0)
    going = [admission.acquire_nowait(tokens=prompt(number)) for number in range(room)]
    with pytest.raises(Overloaded, match="no room"):
        admission.acquire_nowait(tokens=prompt(room))
    assert router.loads() == {"a": len(going)}


async def test_a_closed_admission_serves_who_waits_and_refuses_newcomers() -> None:
    admission = make()
    blocker = await admission.acquire(tokens=prompt(0))
    task = await come(admission, 1, tokens=prompt(1))
    admission.close()
    with pytest.raises(Overloaded) as caught:
        await admission.acquire(tokens=prompt(2))
    assert caught.value.reason == "shutting down"
    blocker.on_complete()
    assert (await served([task]))[0].is_open


async def test_what_waited_is_recorded_and_foreseen() -> None:
    clock = ManualClock()
    admission = make(clock=clock)
    assert str(admission.explain(tokens=prompt(0))) == "goes at once"
    blocker = await admission.acquire(tokens=prompt(0, 4096))
    task = await come(admission, 1, tokens=prompt(1, 4096))
    preview = admission.explain(tokens=prompt(2))
    assert (preview.held, preview.requests_before, preview.tokens_before) == (True, 1, 4096)
    assert str(preview) == f"queued behind 1, about {preview.expected_wait_s:.1f} s"
    assert admission.explain(tokens=prompt(2), priority=1).requests_before == 0
    assert (len(admission), admission.router.stats().overloaded) == (1, 0)
    clock.advance(2.5)
    blocker.on_complete()
    (await served([task]))[0].on_complete()
    records = admission.router.records.recent(2)
    assert [record.queued_s for record in records] == [0.0, 2.5]
    (band,) = admission.stats()
    assert (band.admitted, band.released, band.waited_s) == (1, 1, 2.5)


def test_requests_of_several_loops_and_threads_are_all_served() -> None:
    admission = make("a", "b")
    done: list[str] = []

    async def many(loop: int) -> None:
        async def one(number: int) -> None:
            async with admission.acquire(tokens=prompt(1000 * loop + number)) as decision:
                await asyncio.sleep(0)
                done.append(decision.worker)

        await asyncio.gather(*(one(number) for number in range(100)))

    def work(at: int) -> None:
        if at % 2:
            asyncio.run(many(at))
        else:
            for number in range(100):
                with admission.acquire_sync(tokens=prompt(1000 * at + number)) as decision:
                    done.append(decision.worker)

    with beside(work, range(4)):
        pass
    assert len(done) == 400
    assert len(admission) == 0


def test_a_loop_that_stands_still_holds_up_no_other() -> None:
    admission = make()
    blocker = admission.acquire_nowait(tokens=prompt(0))
    stands, goes_on = threading.Event(), threading.Event()

    async def stalled() -> None:
        task = await come(admission, 1, tokens=prompt(1))
        stands.set()
        goes_on.wait(LONG)  # the loop stands still
        (await served([task]))[0].on_complete()

    async def other() -> None:
        task = await come(admission, 2, tokens=prompt(2))
        blocker.on_complete()
        (await served([task]))[0].on_complete()

    with beside(lambda _: asyncio.run(stalled()), [0]):
        assert stands.wait(LONG)
        try:
            asyncio.run(other())
        finally:
            goes_on.set()
    assert len(admission) == 0


async def test_a_request_of_a_task_that_is_gone_leaves_with_it() -> None:
    admission = make()
    blocker = await admission.acquire(tokens=prompt(0))
    coroutine = acquire(admission, tokens=prompt(1))
    coroutine.send(None)
    assert len(admission) == 1
    coroutine.close()
    assert len(admission) == 0
    assert blocker.is_open


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
async def test_the_queue_of_a_child_is_empty_and_the_parents_goes_on() -> None:
    admission = make()
    blocker = await admission.acquire(tokens=prompt(0))
    task = await come(admission, 1, tokens=prompt(1))
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(BaseException):
            first = admission.acquire_nowait(tokens=prompt(2))
            code = 0 if len(admission) == 0 and first.is_open else 2
        os._exit(code)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    blocker.on_complete()
    assert (await served([task]))[0].is_open


async def test_a_policy_in_python_is_asked_when_a_held_request_goes() -> None:
    class First:
        name = "first"
        needs: frozenset[str] = frozenset()
        asked = 0

        def choose(self, request: object, workers: object) -> int:
            self.asked += 1
            return 0

    policy = First()
    admission = make(policy=policy)
    blocker = await admission.acquire(tokens=prompt(0))
    task = await come(admission, 1, tokens=prompt(1))
    assert policy.asked == 1
    blocker.on_first_token()
    await served([task])
    assert policy.asked == 2


@settings(deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["come", "first-token", "end", "give-up", "ready"]), st.integers(0, 7)), max_size=60
    ),
    order=st.sampled_from(["fcfs", "edf", "shortest-uncached"]),
    fairness=st.sampled_from([None, "vtc"]),
)
def test_whatever_happens_nobody_waits_beside_a_worker_with_room_and_all_are_counted(
    steps: list[tuple[str, int]], order: Any, fairness: Any
) -> None:
    async def run() -> None:
        admission = make("a", "b", requests=2, order=order, fairness=fairness)
        router, ready = admission.router, {"a": True, "b": True}
        tasks: list[asyncio.Task[Decision[str]]] = []
        started: set[str] = set()
        given_up = 0
        for number, (step, value) in enumerate(steps):
            going = [task.result() for task in tasks if task.done() and not task.cancelled() and not task.exception()]
            going = [decision for decision in going if decision.is_open]
            waiting = [task for task in tasks if not task.done()]
            if step == "come":
                request = {"tokens": prompt(number, 64 * value), "priority": value % 2, "tenant": f"{value % 3}"}
                tasks.append(asyncio.create_task(acquire(admission, **request)))
            elif step == "ready":
                worker = "ab"[value % 2]
                ready[worker] = not ready[worker]
                router.set_ready(worker, ready[worker])
            elif step == "give-up" and waiting:
                waiting[value % len(waiting)].cancel()
                given_up += 1
            elif step in {"first-token", "end"} and going:
                decision = going[value % len(going)]
                started.add(decision.id)
                decision.on_first_token() if step == "first-token" else decision.on_complete()
            await settle()
            gone = [task.result() for task in tasks if task.done() and not task.cancelled() and not task.exception()]
            pending = Counter(decision.worker for decision in gone if decision.is_open and decision.id not in started)
            free = [worker for worker in "ab" if ready[worker] and pending[worker] < 2]
            assert not (free and len(admission))
            assert len(admission) == sum(not task.done() for task in tasks)
        bands = admission.stats()
        refused = sum(band.refused for band in bands)
        assert sum(band.cancelled for band in bands) == given_up
        counted = sum(band.admitted + band.released + band.cancelled + band.queued for band in bands)
        # Those that came while no worker was ready were refused.
        assert counted + refused == len(tasks)
        router.validate()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert len(admission) == 0

    asyncio.run(run())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_wait_s": -1}, "max_wait_s must be 0 or more"),
        ({"order": "lifo"}, "order must be one of 'fcfs', 'edf', 'shortest-uncached', got 'lifo'"),
        ({"ageing_tokens_per_s": -1}, "ageing_tokens_per_s must be at least 0"),
        ({"fairness": "drr"}, "fairness must be None or 'vtc'"),
        ({"tenant_weights": {"a": 2.0}}, "no effect without fairness"),
        ({"fairness": "vtc", "tenant_weights": {"a": 0.0}}, "weight must be above 0"),
        ({"max_queued": 0}, "max_queued must be at least 1"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Admission(cachelb.Router(["a"]), **options)
