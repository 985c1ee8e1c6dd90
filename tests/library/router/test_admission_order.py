"""Held requests: in what order they go, and where."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from tests.library.router.admitting import acquire, come, make, prompt, served, settle

from cachelb import Overloaded


async def test_a_first_token_releases_the_next_in_its_order_and_no_timer_does() -> None:
    admission = make("a", "b")
    first, _second = [await admission.acquire(tokens=prompt(at)) for at in range(2)]
    tasks = [await come(admission, at + 1, tokens=prompt(9 + at)) for at in range(3)]
    await settle()
    assert [task.done() for task in tasks] == [False] * 3
    first.on_first_token()
    await settle()
    assert [task.done() for task in tasks] == [True, False, False]
    assert tasks[0].result().worker == first.worker
    for task in tasks[1:]:
        task.cancel()
    await asyncio.wait(tasks)
    assert (len(admission), sum(admission.router.loads().values())) == (0, 3)


async def test_a_long_prompt_gets_an_idle_worker_and_others_wait_for_its_first_token() -> None:
    admission = make(requests=None, tokens=4096)
    long = await admission.acquire(tokens=range(100_000))
    task = await come(admission, 1, tokens=prompt(1))
    long.on_first_token()
    assert (await served([task]))[0].worker == "a"


async def test_the_shortest_uncached_goes_first_as_of_its_release() -> None:
    admission = make(requests=1, order="shortest-uncached", ageing_tokens_per_s=0)
    admission.router.select_worker(tokens=prompt(1, 3200)).on_complete()
    blocker = await admission.acquire(tokens=prompt(0))
    long = await come(admission, 1, tokens=prompt(2, 6400))
    short = await come(admission, 2, tokens=prompt(3, 640))
    cached = await come(admission, 3, tokens=prompt(1, 3200))
    # The prefix of the longest becomes cached while it waits.
    admission.router.select_worker(tokens=prompt(2, 6384)).on_complete()
    blocker.on_first_token()
    tasks, order = {"long": long, "short": short, "cached": cached}, [""]
    for _ in range(3):
        await settle()
        (new,) = {name for name, task in tasks.items() if task.done()} - set(order)
        order.append(new)
        tasks[new].result().on_first_token()
    assert order[3] == "short"


async def test_a_released_request_goes_to_a_worker_with_room_or_where_its_cache_is_worth_the_wait() -> None:
    admission = make("a", "b", requests=None, tokens=100, order="shortest-uncached")
    router = admission.router
    router.select_worker(tokens=prompt(1, 3200), among=["a"]).on_complete()
    full = [await admission.acquire(tokens=prompt(at, 400), among=[worker]) for at, worker in ((2, "a"), (3, "b"))]
    cached = await come(admission, 1, tokens=prompt(1, 3264))
    other = await come(admission, 2, tokens=prompt(4, 3264))
    full[1].on_first_token()
    decisions = await served([cached, other])
    # 301 tokens before it on a, which saves 3,200; the other one saves nothing there.
    assert [decision.worker for decision in decisions] == ["a", "b"]


async def test_bands_are_strict_and_a_full_queue_displaces_the_newest_of_the_lowest() -> None:
    admission = make(max_queued=3)
    blocker = await admission.acquire(tokens=prompt(0))
    low = [await come(admission, at + 1, tokens=prompt(1 + at), priority=-1) for at in range(3)]
    with pytest.raises(Overloaded) as caught:
        await admission.acquire(tokens=prompt(8), priority=-1)
    assert caught.value.reason == "queue full"
    high = asyncio.create_task(acquire(admission, tokens=prompt(9), priority=1))
    with pytest.raises(Overloaded) as caught:
        await low[2]
    assert (caught.value.reason, caught.value.status) == ("queue full", 429)
    blocker.on_first_token()
    for task in (high, low[0], low[1]):
        (await served([task]))[0].on_first_token()
    bands = {band.priority: band for band in admission.stats()}
    assert (bands[-1].displaced, bands[-1].refused, bands[-1].released, bands[1].released) == (1, 1, 2, 1)
    assert admission.router.stats().admission == admission.stats()


async def test_one_that_cannot_use_the_free_worker_blocks_nobody_and_keeps_its_place() -> None:
    admission = make("a", "b")
    blocker = await admission.acquire(tokens=prompt(0), among=["a"])
    pinned = await come(admission, 1, tokens=prompt(1), among=["a"])
    behind = await admission.acquire(tokens=prompt(2))
    last = await come(admission, 2, tokens=prompt(3), among=["a"])
    assert behind.worker == "b"
    blocker.on_complete()
    assert (await served([pinned]))[0].worker == "a"
    assert not last.done()
    pinned.result().on_complete()
    await served([last])


async def test_tenants_are_served_by_their_weights() -> None:
    admission = make(fairness="vtc", tenant_weights={"heavy": 2.0})
    running = await admission.acquire(tokens=prompt(0))
    tasks = {
        tenant: [
            await come(admission, 60 * at + n + 1, tokens=prompt(1000 * at + n + 1), tenant=tenant) for n in range(60)
        ]
        for at, tenant in enumerate(("heavy", "light"))
    }
    for _ in range(60):
        running.on_complete(output_tokens=32)
        before = [task for each in tasks.values() for task in each if task.done()]
        await settle()
        (task,) = [task for each in tasks.values() for task in each if task.done() and task not in before]
        running = task.result()
    turns = {tenant: sum(task.done() for task in each) for tenant, each in tasks.items()}
    assert turns["heavy"] + turns["light"] == 60
    assert 39 <= turns["heavy"] <= 41
    for each in tasks.values():
        for task in each:
            task.cancel()
    await settle()


async def test_an_idle_tenant_earns_no_credit_and_a_busy_one_does_not_starve_it() -> None:
    admission = make(fairness="vtc")
    running = await admission.acquire(tokens=prompt(0), tenant="busy")
    busy = [await come(admission, at + 1, tokens=prompt(at + 1), tenant="busy") for at in range(20)]
    late = [await come(admission, at + 21, tokens=prompt(at + 50), tenant="late") for at in range(10)]
    order = []
    for _ in range(10):
        before = {task for task in (*busy, *late) if task.done()}
        running.on_first_token()
        await settle()
        (task,) = {task for task in (*busy, *late) if task.done()} - before
        order.append("busy" if task in busy else "late")
        running = task.result()
    assert Counter(order) == {"busy": 5, "late": 5}
    for task in (*busy, *late):
        task.cancel()
    await settle()
