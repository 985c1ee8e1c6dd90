"""The cost of an admission: a request that need not wait, a release while 100,000 wait, and the delay of their loop."""

from __future__ import annotations

import array
import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import pytest

from cachelb import Admission, Decision, Router
from cachelb._core import HeldRequest

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

    from cachelb.admission import Order

QUEUED = 100_000
WORKERS = 8
PROMPT = 1024
BANDS, TENANTS = 5, 5_000


def prompt(number: int) -> array.array[int]:
    """Return tokens that no other prompt has, in a buffer."""
    return array.array("I", range(100 * number, 100 * number + PROMPT))


def label(benchmark: BenchmarkFixture, name: str, note: str) -> None:
    """Name the row in the report."""
    benchmark.extra_info.update(id=f"python/admission/{name}", note=note)


def router() -> Router[str]:
    """Build a router over a few workers."""
    return Router([f"http://gpu{at}:8000" for at in range(WORKERS)], seed=1, hash_seed=1)


@pytest.mark.parametrize("how", ["select_worker", "acquire_nowait", "acquire_sync"])
def test_nobody_waits(benchmark: BenchmarkFixture, how: str) -> None:
    """Select and end, with and without an admission."""
    label(benchmark, f"idle/{how}", f"{PROMPT}-token buffer, {WORKERS} workers, none waiting")
    admission = Admission(router(), max_pending_requests=1000)
    select = getattr(admission if how.startswith("acquire") else admission.router, how)
    tokens = prompt(0)
    benchmark.pedantic(lambda: select(tokens=tokens).on_complete(), rounds=5_000, iterations=4, warmup_rounds=100)


@pytest.mark.parametrize("fairness", [None, "vtc"])
@pytest.mark.parametrize("order", ["fcfs", "edf", "shortest-uncached"])
def test_release(benchmark: BenchmarkFixture, order: Order, fairness: Literal["vtc"] | None) -> None:
    """A first token while many wait: the next one is found and called."""
    label(benchmark, f"release/{order}/{fairness}", f"{QUEUED} queued, {BANDS} priorities, {TENANTS} tenants")
    admission = Admission(
        router(),
        max_pending_requests=1,
        max_pending_tokens=None,
        max_wait_s=None,
        order=order,
        fairness=fairness,
        max_queued=QUEUED,
    )
    running: list[Decision[str]] = [admission.acquire_nowait(tokens=prompt(at)) for at in range(WORKERS)]
    held: dict[int, HeldRequest[str]] = {}
    called: list[int] = []
    for at in range(WORKERS, WORKERS + QUEUED):
        request = {"tokens": prompt(at), "priority": at % BANDS, "tenant": f"t{at % TENANTS}"}
        call = partial(called.append, at)
        entered = admission._gate.enter(call, 0, (None, False, False, False), **request)  # noqa: SLF001 - without a task
        assert isinstance(entered, HeldRequest)
        held[at] = entered

    def setup() -> tuple[tuple[()], dict[str, Any]]:
        if called:
            decision: Any = held.pop(called.pop()).try_again(False)  # noqa: FBT003 - native
            running.append(decision)
        return (), {}

    def release() -> None:
        running.pop(0).on_first_token()

    benchmark.pedantic(release, setup=setup, rounds=2_000)
    assert not called or len(called) == 1


@pytest.mark.parametrize("order", ["fcfs", "shortest-uncached"])
def test_loop_is_held(benchmark: BenchmarkFixture, order: Order) -> None:
    """A first token of each worker at once while many tasks wait, until all eight that are next went on."""
    loop = asyncio.new_event_loop()
    admission = Admission(router(), max_pending_requests=1, max_wait_s=None, order=order, max_queued=QUEUED)
    running: list[Decision[str]] = [admission.acquire_nowait(tokens=prompt(at)) for at in range(WORKERS)]
    longest = 0.0

    async def wait(at: int) -> None:
        running.append(await admission.acquire(tokens=prompt(at)))

    async def release() -> None:
        nonlocal longest
        while running:
            running.pop().on_first_token()
        while len(running) < WORKERS:
            began = time.perf_counter()
            await asyncio.sleep(0)
            longest = max(longest, time.perf_counter() - began)

    tasks = [loop.create_task(wait(at)) for at in range(WORKERS, WORKERS + QUEUED)]
    loop.run_until_complete(asyncio.sleep(0))
    assert len(admission) == QUEUED
    benchmark.pedantic(lambda: loop.run_until_complete(release()), rounds=200)
    note = f"{QUEUED} tasks, eight released; the loop's longest step was {1000 * longest:.1f} ms"
    label(benchmark, f"loop/{order}", note)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.close()
