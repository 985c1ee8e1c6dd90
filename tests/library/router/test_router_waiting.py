"""Requests that wait for a worker: their order, and that none is left behind."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.threads import beside

import cachelb
from cachelb import Decision, Router
from cachelb.testing import ManualClock

LONG = 60.0
"""Seconds after which a wait that should have ended has failed."""


def make(*keys: str, ready: bool = False) -> Router[str]:
    router = cachelb.Router(keys, seed=1, policy="least-loaded")
    for key in keys:
        router.set_ready(key, ready)
    return router


def wait(router: Router[str], **request: Any) -> asyncio.Task[Decision[str]]:
    return asyncio.create_task(router.select_worker_when_ready(timeout_s=LONG, **{"by_load": True, **request}))


async def queued(router: Router[str], n: int) -> None:
    """Let the tasks run until `n` of them wait and none has anything to try."""
    while len(router._waiting) != n:  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)


async def ended(tasks: list[asyncio.Task[Decision[str]]]) -> list[Decision[str]]:
    async with asyncio.timeout(LONG):
        return await asyncio.gather(*tasks)


def test_a_ready_worker_is_picked_at_once() -> None:
    router = make("a", ready=True)
    decision = asyncio.run(router.select_worker_when_ready(timeout_s=0, by_load=True))
    assert (decision.key, len(router._waiting)) == ("a", 0)


@pytest.mark.parametrize("timeout_s", [0, 0.01])
def test_a_wait_that_ends_without_a_worker_tells_why(timeout_s: float) -> None:
    router = make("a")
    with pytest.raises(cachelb.NoWorkerAvailable) as info:
        asyncio.run(router.select_worker_when_ready(timeout_s=timeout_s, by_load=True))
    assert info.value.reasons == {"a": "not ready"}
    assert info.value.retry_after_s > 0
    assert len(router._waiting) == 0


@pytest.mark.parametrize("timeout_s", [-1, float("nan")])
def test_a_timeout_that_is_none_is_refused(timeout_s: float) -> None:
    with pytest.raises(ValueError, match="timeout_s must be"):
        asyncio.run(make("a").select_worker_when_ready(timeout_s=timeout_s, by_load=True))


@pytest.mark.parametrize("how", ["set_ready", "add_worker", "sync_workers"])
async def test_a_worker_that_comes_ends_the_wait(how: str) -> None:
    router = make("a")
    task = wait(router)
    await queued(router, 1)
    if how == "set_ready":
        router.set_ready("a", True)
    elif how == "add_worker":
        router.add_worker("b")
    else:
        router.sync_workers(["a", "b"])
    (decision,) = await ended([task])
    assert decision.key == ("a" if how == "set_ready" else "b")
    assert router.loads()[decision.key] == 1
    assert len(router._waiting) == 0


async def test_workers_that_return_together_share_those_who_wait() -> None:
    router = make("a", "b")
    tasks = [wait(router) for _ in range(100)]
    await queued(router, 100)
    router.set_ready("a", True)
    router.set_ready("b", True)
    decisions = await ended(tasks)
    assert Counter(decision.key for decision in decisions) == {"a": 50, "b": 50}
    assert router.loads() == {"a": 50, "b": 50}


async def test_the_highest_priority_is_served_first_then_who_came_first() -> None:
    router = make("a")
    served: list[str] = []

    async def one(name: str, priority: int) -> None:
        await router.select_worker_when_ready(timeout_s=LONG, priority=priority, by_load=True)
        served.append(name)

    tasks = []
    for name, priority in (("low 1", -1), ("first", 0), ("high 1", 5), ("second", 0), ("high 2", 5), ("low 2", -1)):
        tasks.append(asyncio.create_task(one(name, priority)))
        await queued(router, len(tasks))
    router.set_ready("a", True)
    late = asyncio.create_task(one("late", 0))
    async with asyncio.timeout(LONG):
        await asyncio.gather(*tasks, late)
    assert served == ["high 1", "high 2", "first", "second", "late", "low 1", "low 2"]


async def test_a_cancelled_wait_leaves_nothing_booked() -> None:
    router = make("a")
    tasks = [wait(router) for _ in range(10)]
    await queued(router, 10)
    for task in tasks[:5]:
        task.cancel()
    router.set_ready("a", True)
    for task in tasks[5:7]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(result, asyncio.CancelledError) for result in results] == [True] * 7 + [False] * 3
    assert router.loads() == {"a": 3}
    assert len(router._waiting) == 0


async def test_those_who_want_something_else_do_not_hold_up_the_others() -> None:
    router = make("a", "b")
    first = wait(router, among=["a"])
    await queued(router, 1)
    second = wait(router, among=["b"])
    await queued(router, 2)
    router.set_ready("b", True)
    (decision,) = await ended([second])
    assert decision.key == "b"
    assert not first.done()
    third = wait(router, among=["b"])
    assert (await ended([third]))[0].key == "b"
    router.set_ready("a", True)
    assert (await ended([first]))[0].key == "a"


def one_at_a_time() -> Router[str]:
    """A router that refuses a second request before the first one has its first token, which takes a second."""
    return cachelb.Router(
        ["a"],
        clock=ManualClock(),
        policy=cachelb.policies.EstimatedTtft(prefill=(0.0, 0.0, 1000.0), ttft_slo_ms=1500.0, on_slo="reject"),
    )


async def test_a_release_wakes_those_who_found_workers_too_busy() -> None:
    router = one_at_a_time()
    holder = router.select_worker(by_load=True)
    tasks = [wait(router) for _ in range(3)]
    await queued(router, 3)
    served: list[Decision[str]] = []
    for left, end in ((2, holder.on_complete), (1, None), (0, None)):
        if end is not None:
            end()
        else:
            served.pop().on_error(500)
        (done,), _ = await asyncio.wait([task for task in tasks if not task.done()], return_when="FIRST_COMPLETED")
        assert done is tasks[2 - left]
        served.append(done.result())
        await queued(router, left)
    assert router.loads() == {"a": 1}


@pytest.mark.parametrize("first", [Decision.on_first_token, lambda decision: decision.on_tokens(1)])
async def test_a_first_token_wakes_them_too(first: Callable[[Decision[str]], None]) -> None:
    router = one_at_a_time()
    holder = router.select_worker(by_load=True)
    task = wait(router)
    await queued(router, 1)
    first(holder)
    for _ in range(20):  # at once, not when it would try again by itself
        await asyncio.sleep(0)
    assert task.done()
    assert (task.result().key, router.loads()) == ("a", {"a": 2})


async def test_who_found_workers_too_busy_tries_again_when_a_report_has_grown_old() -> None:
    clock = ManualClock()
    router = cachelb.Router(
        ["a"],
        clock=clock,
        policy=cachelb.policies.LeastExpectedWait(max_waiting_requests=2),
        health=cachelb.Health(max_report_age_s=2.0),
    )
    router.load_sink.update_load("a", waiting=2, queued_tokens=0)
    served: list[str] = []

    async def one(name: str, priority: int) -> None:
        await router.select_worker_when_ready(timeout_s=10 * LONG, priority=priority, by_load=True)
        served.append(name)

    tasks = [asyncio.create_task(one(name, priority)) for name, priority in (("low", 0), ("high", 1))]
    await queued(router, 2)
    clock.advance(2.1)  # no end is reported
    async with asyncio.timeout(LONG):
        await asyncio.gather(*tasks)
    assert served == ["high", "low"]


async def test_an_abandoned_decision_wakes_them_too() -> None:
    router = one_at_a_time()
    holder = [router.select_worker(by_load=True)]
    task = wait(router)
    await queued(router, 1)
    holder.clear()
    gc.collect()
    assert (await ended([task]))[0].key == "a"


def test_several_event_loops_in_threads_are_all_served() -> None:
    router = make("a", "b")
    waiting = threading.Barrier(5)
    keys: list[str] = []

    async def many() -> None:
        tasks = [wait(router) for _ in range(25)]
        await asyncio.sleep(0)
        await asyncio.to_thread(waiting.wait, LONG)
        keys.extend(decision.key for decision in await ended(tasks))

    with beside(lambda _: asyncio.run(many()), range(4)):
        waiting.wait(LONG)
        router.set_ready("a", True)
        router.set_ready("b", True)
    # How many the first one served before the second returned is up to the threads.
    assert (len(keys), set(keys) <= {"a", "b"}) == (100, True)
    gc.collect()
    assert len(router._waiting) == 0
    assert set(router.loads().values()) == {0}


def test_a_loop_that_was_closed_under_its_requests_holds_nobody_up() -> None:
    router = make("a")
    loop = asyncio.new_event_loop()
    task = loop.create_task(router.select_worker_when_ready(timeout_s=LONG, by_load=True))
    for _ in range(5):
        loop.run_until_complete(asyncio.sleep(0))
    assert len(router._waiting) == 1
    loop.close()

    async def main() -> None:
        other = wait(router)
        await queued(router, 2)
        router.set_ready("a", True)
        assert (await ended([other]))[0].key == "a"

    asyncio.run(main())
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # the point
    del task
    gc.collect()
