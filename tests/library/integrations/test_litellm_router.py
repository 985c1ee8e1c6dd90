"""The LiteLLM callback in LiteLLM's own router, with real HTTP below it."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from tests.library.integrations.litellm_host import PROMPT, chat, groups, hosted, in_litellm, messages, settled
from tests.support_gateways import endings

from cachelb.integrations.litellm import CachelbCallback
from cachelb.testing import ManualClock
from cachelb_fakes import FakeFleet

# LiteLLM warns about its own models and leaves sockets to the collector; what is tested here warns of nothing.
pytestmark = pytest.mark.filterwarnings("ignore")


async def ended(callback: CachelbCallback) -> dict[str, int]:
    """Wait until nothing is booked; return how requests ended."""
    await settled(lambda: callback.router.stats().open_requests == 0)
    assert set(callback.router.loads().values()) <= {0}
    assert callback._bookings == {}
    return endings(callback.router)


async def begin_stream(router: Any, text: str = PROMPT, **options: Any) -> Any:
    fields = {"model": "m", "messages": messages(text), "stream": True, "max_tokens": 9}
    return await router.acompletion(**fields | options)


@in_litellm(3)
async def test_conversations_stay_where_their_prompt_is(callback: CachelbCallback, router: Any) -> None:
    first = [await chat(router, f"{number}{PROMPT}") for number in range(6)]
    again = [await chat(router, f"{number}{PROMPT}") for number in range(6)]
    assert again == first
    assert len(set(first)) == 3
    assert await ended(callback) == {"completed": 12}
    assert sum(record.cached_tokens or 0 for record in callback.router.records.recent(12)) > 6 * 400
    assert callback.fallbacks.total() == callback.unread == callback.expired == 0


@in_litellm(2)
async def test_text_completions_are_routed_by_text_and_by_token_ids(callback: CachelbCallback, router: Any) -> None:
    for prompt in (PROMPT, PROMPT, list(range(200)), list(range(200))):
        await router.atext_completion(model="m", prompt=prompt, max_tokens=1)
    await ended(callback)
    assert [record.matched_tokens > 100 for record in callback.router.records.recent(4)] == [False, True, False, True]
    assert callback.unread == 0


@in_litellm(4, lambda urls: groups(small=urls[:2], large=urls[2:]))
async def test_groups_of_one_router_do_not_mix(callback: CachelbCallback, router: Any) -> None:
    asked = [(group, f"{number}{PROMPT}") for number in range(4) for group in ("small", "large")] * 2
    answered = [await chat(router, text, model=group) for group, text in asked]
    await ended(callback)
    assert [key.partition("/")[0] for key in answered] == [group for group, _ in asked]
    assert answered[:8] == answered[8:]
    assert len(set(answered)) == 4


@in_litellm(3, num_retries=2)
async def test_retry_goes_to_another_deployment_and_books_once(
    fleet: FakeFleet, callback: CachelbCallback, router: Any
) -> None:
    home = await chat(router)
    for status in (500, 503):
        fleet.workers[int(home[-1])].fail("status", times=1, status=status)
        assert await chat(router) != home
    assert await ended(callback) == {"completed": 3, "failed": 1, "backpressure": 1}


@in_litellm(2, num_retries=1)
async def test_metadata_shared_by_requests_does_not_mix_them_up(
    fleet: FakeFleet, callback: CachelbCallback, router: Any
) -> None:
    metadata: dict[str, Any] = {"team": "a"}
    home = await chat(router, metadata=metadata)
    fleet.workers[int(home[-1])].fail("status", times=1, status=500)
    assert await chat(router, metadata=metadata) != home
    both = [chat(router, f"{number}{PROMPT}", metadata=metadata) for number in range(8)]
    assert len(set(await asyncio.gather(*both))) == 2
    assert await ended(callback) == {"completed": 10, "failed": 1}


@in_litellm(3, num_retries=1, disable_cooldowns=False, allowed_fails=0, cooldown_time=600)
async def test_deployment_in_cooldown_gets_nothing_and_stays_known(
    fleet: FakeFleet, callback: CachelbCallback, router: Any
) -> None:
    home = await chat(router)
    worker = fleet.workers[int(home[-1])]
    worker.fail("status", status=500)
    assert home not in [await chat(router) for _ in range(4)]
    assert worker.counts.faults["500"] == 1  # the others were not sent there any more
    assert callback.router.keys() == ["m/0", "m/1", "m/2"]
    assert await ended(callback) == {"completed": 5, "failed": 1}


@in_litellm(2, num_retries=3)
async def test_whole_group_down_fails_as_without_the_callback(
    fleet: FakeFleet, callback: CachelbCallback, router: Any
) -> None:
    fleet.fail("status", status=500)
    with pytest.raises(Exception, match="planned by the test"):
        await chat(router)
    assert await ended(callback) == {"failed": 4}
    assert [worker.counts.faults["500"] for worker in fleet.workers] == [2, 2]


@in_litellm(2, lambda urls: groups(m=urls[:1], spare=urls[1:]), fallbacks=[{"m": ["spare"]}])
async def test_fallback_to_another_group_is_booked_there(
    fleet: FakeFleet, callback: CachelbCallback, router: Any
) -> None:
    fleet.workers[0].fail("status", times=1, status=500)
    assert await chat(router) == "spare/0"
    assert await ended(callback) == {"completed": 1, "failed": 1}


@pytest.mark.parametrize("stalls", [True, False])
@in_litellm(1)
async def test_timeouts_count_against_the_worker_and_errors_of_clients_do_not(
    fleet: FakeFleet, callback: CachelbCallback, router: Any, stalls: bool
) -> None:
    fleet.fail("stall" if stalls else "status", times=1, status=0 if stalls else 400)
    with pytest.raises(Exception, match="Timeout" if stalls else "planned by the test"):
        await chat(router, timeout=0.2 if stalls else 60)
    assert await ended(callback) == {"failed" if stalls else "client": 1}


@in_litellm(2)
async def test_requested_deployment_is_not_routed(callback: CachelbCallback, router: Any) -> None:
    assert [await chat(router, model=key) for key in ("m/1", "m/0", "m/1")] == ["m/1", "m/0", "m/1"]
    assert sum(callback.router.stats().decisions.values()) == callback.fallbacks.total() == 0


# --- streams ---


@pytest.mark.parametrize("usage", [True, False])
@in_litellm(1)
async def test_stream_is_booked_until_its_end(callback: CachelbCallback, router: Any, usage: bool) -> None:
    for turn in (1, 2):
        stream = await begin_stream(router, stream_options={"include_usage": usage})
        assert callback.router.stats().open_requests == 1
        assert len([chunk async for chunk in stream]) >= 4
        assert await ended(callback) == {"completed": turn}
    told = [record.cached_tokens for record in callback.router.records.recent(2)]
    assert told == ([0, 448] if usage else [None, None])


@in_litellm(1)
async def test_stream_that_breaks_off_failed(fleet: FakeFleet, callback: CachelbCallback, router: Any) -> None:
    fleet.fail("die", times=1, after_chunks=2)
    stream = await begin_stream(router)
    with pytest.raises(Exception, match="Error"):
        [chunk async for chunk in stream]
    assert await ended(callback) == {"failed": 1}


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "dropped"])
@in_litellm(1)
async def test_stream_that_the_client_gives_up_is_cancelled(
    fleet: FakeFleet, callback: CachelbCallback, router: Any, closed: bool
) -> None:
    fleet.workers[0].fail("stall", times=1, after_chunks=2)
    stream = await begin_stream(router)
    await anext(stream)
    assert callback.router.stats().open_requests == 1
    if closed:
        await stream.aclose()
    del stream
    gc.collect()  # LiteLLM's objects refer to each other
    await settled(lambda: fleet.workers[0]._replica.counts.aborted == 1)
    assert await ended(callback) == {"cancelled": 1}


def test_clients_that_leave_late_count_against_a_worker_only_before_the_first_token() -> None:
    async def leave(after_chunks: int) -> list[str]:
        clock = ManualClock(1_000.0)
        callback = CachelbCallback(seed=1, clock=clock)
        with FakeFleet(2) as fleet:
            fleet.fail("stall", after_chunks=after_chunks)
            async with hosted(callback, groups(m=fleet.urls)) as router:
                tasks = [asyncio.create_task(read(router, f"{number}{PROMPT}")) for number in range(4)]
                await settled(lambda: sum(w._replica.counts.faults["stall"] for w in fleet.workers) == 4)
                pending = callback.router.stats
                await settled(lambda: not after_chunks or not any(w.pending_prefill_tokens for w in pending().workers))
                clock.advance(600)
                while tasks:
                    tasks[-1].cancel()
                    await asyncio.wait([tasks.pop()])
                gc.collect()  # LiteLLM's objects refer to each other
                assert await ended(callback) == {"cancelled": 4}
                return [worker.state for worker in callback.router.stats().workers]

    async def read(router: Any, text: str) -> None:
        async for _ in await begin_stream(router, text):
            pass

    assert asyncio.run(leave(0)) == ["unreachable"] * 2
    assert asyncio.run(leave(2)) == ["ready"] * 2


@in_litellm(1, cache_responses=True)
async def test_stream_from_litellms_own_cache_is_no_sign_of_the_worker(callback: CachelbCallback, router: Any) -> None:
    for _ in range(2):
        assert len([chunk async for chunk in await begin_stream(router)]) >= 1
        await ended(callback)
    assert endings(callback.router) == {"completed": 1, "cancelled": 1}
    assert [record.ttft_s is None for record in callback.router.records.recent(2)] == [False, True]


@in_litellm(1)
async def test_request_that_the_client_gives_up_is_cancelled(
    fleet: FakeFleet, callback: CachelbCallback, router: Any
) -> None:
    fleet.workers[0].fail("stall", times=1)
    task = asyncio.create_task(chat(router))
    await settled(lambda: fleet.workers[0]._replica.counts.faults["stall"] == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    del task
    gc.collect()  # LiteLLM's objects refer to each other
    assert await ended(callback) == {"cancelled": 1}


@in_litellm(4, seed=3, num_retries=1)
async def test_nothing_stays_booked_after_a_storm(fleet: FakeFleet, callback: CachelbCallback, router: Any) -> None:
    async def client(router: Any, numbers: Any) -> None:
        for number in numbers:
            try:
                stream = await begin_stream(router, f"{number % 7}{PROMPT}", stream=number % 3 > 0, max_tokens=4)
                if number % 3 == 1:
                    [chunk async for chunk in stream]
                elif number % 3:
                    await anext(stream)
                    await stream.aclose()
            except Exception as error:  # noqa: BLE001 - what a client sees of a worker that fails
                assert "no deployments" not in str(error).lower()  # noqa: PT017

    fleet.set_rates(refuse=0.1, die=0.1, status={500: 0.1})
    numbers = iter(range(120))
    await asyncio.gather(*(client(router, numbers) for _ in range(8)))
    gc.collect()
    await ended(callback)
    stats = callback.router.stats()
    assert sum(stats.endings.values()) == sum(stats.decisions.values())
    assert min(stats.endings["completed"], stats.endings["failed"], stats.endings["cancelled"]) > 0
    assert stats.endings["abandoned"] == callback.fallbacks.total() == 0
