"""The request router for Ray Serve against fake replicas: every order in which Serve calls its hooks."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

import pytest
from ray.serve._private.common import RequestProtocol
from tests.library.integrations.ray_fakes import (
    STORY,
    Client,
    FakeReplica,
    fleet,
    make_router,
    serving,
    set_replicas,
    settle,
)

from cachelb.integrations.ray_serve import CachelbRequestRouter
from cachelb.integrations.ray_serve import bookings as bookings_module
from cachelb.integrations.ray_serve import router as router_module
from cachelb.testing import ManualClock


def loads(router: CachelbRequestRouter) -> int:
    return sum(router.fleet.loads().values())


def held(router: CachelbRequestRouter, prompt: str = STORY) -> set[str]:
    """Names of the replicas that are predicted to hold all whole blocks of a prompt."""
    workers = router.fleet.explain(text=prompt).candidates
    most = max(worker.matched_tokens for worker in workers)
    return {worker.key.rpartition("#")[2] for worker in workers if worker.matched_tokens == most and most > 0}


# --- where requests go ---


@pytest.mark.parametrize("sizes", [[1, 1], [1, 1, 1], [1, 1, 3]])
async def test_groups_are_the_best_the_second_best_and_all_others(sizes: list[int]) -> None:
    replicas = fleet(sum(sizes))
    client = Client(make_router(replicas))
    groups = await client.choose(client.request())
    assert [len(group) for group in groups] == sizes
    assert {replica for group in groups for replica in group} == set(replicas)


async def test_second_best_holds_the_second_longest_prefix() -> None:
    replicas = fleet(4)
    _, client = serving(replicas)
    half, whole = client.request(STORY[:900]), client.request()
    await client.choose(half, [replicas[2]])
    client.take(half, replicas[2])
    client.finish(half, replicas[2])
    await client.choose(whole, [replicas[1]])
    client.take(whole, replicas[1])
    client.finish(whole, replicas[1])
    groups = await client.choose(client.request())
    assert groups[0] == [replicas[1]]
    assert groups[1] == [replicas[2]]


async def test_only_candidates_are_returned() -> None:
    replicas = fleet(4)
    client = Client(make_router(replicas))
    groups = await client.choose(client.request(), replicas[1:3])
    assert {replica for group in groups for replica in group} == set(replicas[1:3])


async def test_no_candidates_is_no_choice_and_books_nothing() -> None:
    router, client = serving(fleet())
    assert await client.choose(client.request(), []) == []
    assert loads(router) == 0


async def test_nobody_in_particular_goes_by_load_and_books_nothing() -> None:
    replicas = fleet(3)
    router, client = serving(replicas)
    busy = {await client.serve(client.request(f"{at} {STORY}")) for at in range(2)}
    groups = await client.choose(None)
    assert set(groups[0]) == set(replicas) - busy
    assert loads(router) == 2


# --- what is booked ---


async def test_second_choice_for_a_request_replaces_the_first() -> None:
    router, client = serving(fleet())
    request = client.request()
    for _ in range(4):
        await client.choose(request)
        assert loads(router) == 1
    replica = (await client.choose(request))[0][0]
    client.take(request, replica)
    client.finish(request, replica)
    assert loads(router) == 0
    assert router.counters()["chosen_again"] == 4
    assert held(router) == {replica.replica_id.unique_id}


async def test_request_is_rebooked_at_the_replica_that_took_it() -> None:
    router, client = serving(fleet())
    request = client.request()
    groups = await client.choose(request)
    best, other = groups[0][0], groups[-1][0]
    client.take(request, other)
    assert router.fleet.loads()[other.key] == 1
    assert router.fleet.loads()[best.key] == 0
    assert held(router) == {other.replica_id.unique_id}
    client.finish(request, other)
    assert loads(router) == 0
    assert router.counters()["moved"] == 1
    assert router.fleet.stats().endings["completed"] == 1


@pytest.mark.parametrize("order", ["refusal, end, choice", "refusal, choice, end", "refusal, choice, taken, end"])
async def test_end_of_a_refused_attempt_releases_nothing(order: str) -> None:
    router, client = serving(fleet())
    request = client.request()
    refusing = (await client.choose(request))[0][0]
    client.give(request, refusing)
    client.refuse(request, refusing)
    if order == "refusal, end, choice":
        client.end(request, refusing)
        assert loads(router) == 0
    replica = (await client.choose(request))[0][0]
    assert replica is not refusing
    if order == "refusal, choice, end":
        client.end(request, refusing)
    assert loads(router) == 1
    client.take(request, replica)
    if order == "refusal, choice, taken, end":
        client.end(request, refusing)
    assert router.fleet.loads()[replica.key] == 1
    assert held(router) == {replica.replica_id.unique_id}
    client.finish(request, replica)
    assert loads(router) == 0
    assert router.counters()["unmatched"] == 0


async def test_a_replica_that_refused_is_not_chosen_again_while_another_is_left() -> None:
    router, client = serving(fleet(2))
    holder = await client.serve_whole()
    request, first = await client.ask()
    assert first is holder
    client.give(request, holder)
    client.refuse(request, holder)
    router.on_new_queue_len_info(holder.replica_id, 0)
    assert (await client.choose(request))[0] != [holder]


async def test_replica_that_refuses_and_then_takes_the_request_ends_it_once() -> None:
    """The only replica: both ends come from it, and cannot be distinguished."""
    router, client = serving(fleet(1))
    request = client.request()
    (replica,) = (await client.choose(request))[0]
    client.give(request, replica)
    client.refuse(request, replica)
    assert (await client.choose(request))[0] == [replica]
    client.take(request, replica)
    client.end(request, replica)
    assert loads(router) == 1
    client.end(request, replica)
    assert loads(router) == 0
    client.end(request, replica)
    assert router.counters()["unmatched"] == 1


async def test_request_that_ends_before_it_is_known_as_taken_keeps_its_prompt() -> None:
    router, client = serving(fleet())
    request, replica = await client.ask()
    client.give(request, replica)
    client.end(request, replica)
    assert loads(router) == 0
    client.accept(request, replica)
    assert loads(router) == 0
    assert held(router) == {replica.replica_id.unique_id}
    assert len(router._bookings) == 0


async def test_caller_that_gives_up_in_the_queue_releases_its_booking() -> None:
    router, client = serving(fleet())
    request = client.request()
    await client.choose(request)
    request.future.cancel()
    await settle()
    assert loads(router) == 0
    assert router.counters()["withdrawn"] == 1
    assert held(router) == set()


async def test_replicas_that_cannot_refuse_say_only_that_a_request_ended() -> None:
    router, client = serving(fleet(), strict=False)
    request = client.request()
    groups = await client.choose(request)
    other = groups[-1][0]
    client.give(request, other)
    assert loads(router) == 1
    client.end(request, other)
    assert loads(router) == 0
    assert held(router) == {other.replica_id.unique_id}


# --- bookings without an end ---


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    clock = ManualClock(1000.0)
    defaults = bookings_module.Bookings.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "clock", clock)
    return clock


@pytest.mark.parametrize(("is_taken", "ttl_s"), [(False, 5), (True, 3600)], ids=["never used", "taken"])
async def test_booking_that_nobody_ends_expires(clock: ManualClock, is_taken: bool, ttl_s: float) -> None:
    """The caller only asked where to go, or the end of the replica is not reported."""
    router, client = serving(fleet(), options={"unrouted_ttl_s": 5})
    await (client.serve if is_taken else client.choose)(client.request())
    clock.advance(ttl_s - 0.1)
    router._bookings.sweep()
    assert loads(router) == 1
    clock.advance(0.2)
    router._bookings.sweep()
    assert loads(router) == 0
    assert router.counters()["abandoned"] == 1
    assert router.fleet.stats().endings["abandoned"] == 1
    assert is_taken or held(router) == set()


async def test_reserved_replica_counts_until_the_request_ends(clock: ManualClock) -> None:
    """A caller reserves a slot and dispatches later: it is not reported that the replica took the request."""
    router, client = serving(fleet(), options={"unrouted_ttl_s": 5})
    request, replica = await client.ask()
    request.future.set_result(replica)
    clock.advance(60)
    router._bookings.sweep()
    assert router.fleet.loads()[replica.key] == 1
    client.end(request, replica)
    assert loads(router) == 0
    assert router.counters()["abandoned"] == 0


async def test_expired_choice_is_booked_again_when_a_replica_takes_it(clock: ManualClock) -> None:
    router, client = serving(fleet(), options={"unrouted_ttl_s": 5})
    request, replica = await client.ask()
    clock.advance(6)
    router._bookings.sweep()
    client.take(request, replica)
    assert router.fleet.loads()[replica.key] == 1
    client.finish(request, replica)
    assert loads(router) == 0


# --- callers that give up ---


async def test_caller_that_gives_up_before_a_replica_takes_its_request_cancels_it() -> None:
    router, client = serving(fleet())
    request = client.request()
    replica = (await client.choose(request))[0][0]
    request.future.set_result(replica)

    async def send() -> None:
        """Wait for a replica that hangs, as Serve does."""
        assert await router._choose_replica_for_request(request) is replica
        await asyncio.Event().wait()

    task = asyncio.create_task(send())
    await settle()
    task.cancel()
    await settle()
    assert loads(router) == 0
    client.end(request, replica)  # it goes on
    counters, endings = router.counters(), router.fleet.stats().endings
    assert (counters["withdrawn"], counters["unmatched"]) == (1, 1)
    assert (endings["cancelled"], endings["completed"]) == (1, 0)


@pytest.mark.parametrize("is_early", [True, False])
async def test_caller_that_gives_up_later_cancels_it_whatever_the_replica_reports(is_early: bool) -> None:
    router, client = serving(fleet())
    request, replica = await client.ask()
    client.give(request, replica)
    if is_early:
        client.end(request, replica)
    result = client.accept(request, replica)
    result.cancel()
    assert result.is_cancelled
    assert loads(router) == 0
    client.end(request, replica)
    endings = router.fleet.stats().endings
    assert (endings["cancelled"], endings["completed"]) == ((1, 1) if is_early else (1, 0)), "one is booked again"


@pytest.mark.parametrize("in_threads", [True, False])
@pytest.mark.parametrize(
    ("metadata", "items", "begins"),
    [
        ({"is_streaming": True}, [], False),
        ({"is_streaming": True}, ["token"], True),
        ({"is_streaming": True, "_request_protocol": RequestProtocol.HTTP}, [b"http.response.start"], False),
        (
            {"is_streaming": True, "_request_protocol": RequestProtocol.HTTP},
            [b"http.response.start", b"http.response.body"],
            True,
        ),
        ({}, ["no stream"], False),
    ],
)
async def test_first_token_is_the_first_one_that_the_consumer_of_a_stream_gets(
    metadata: dict[str, Any], items: list[Any], *, begins: bool, in_threads: bool
) -> None:
    router, client = serving(fleet())
    request = client.request(**metadata)
    replica = (await client.choose(request))[0][0]
    client.give(request, replica)
    result = client.accept(request, replica)
    seen = weakref.ref(result)
    result.items = iter(items)
    assert [result.__next__() if in_threads else await result.__anext__() for _ in items] == items
    result.cancel()
    assert (router.fleet.records.recent()[-1].ttft_s is not None) == begins
    del result
    assert seen() is None


# --- queues ---


async def test_full_replica_is_passed_over() -> None:
    router, client = serving(fleet())
    holder = await client.serve_whole()
    router.on_new_queue_len_info(holder.replica_id, holder.max_ongoing_requests)
    assert (await client.choose(client.request()))[0] != [holder]
    router.on_new_queue_len_info(holder.replica_id, holder.max_ongoing_requests - 1)
    free = client.request(STORY + "the end")
    assert holder in [replica for group in await client.choose(free) for replica in group]


async def test_all_replicas_are_offered_if_all_are_full() -> None:
    replicas = fleet(3, queue=10)
    client = Client(make_router(replicas))
    groups = await client.choose(client.request())
    assert {replica for group in groups for replica in group} == set(replicas)


async def test_replica_with_an_unknown_queue_may_be_chosen() -> None:
    router, client = serving(fleet())
    holder = await client.serve_whole()
    router.replica_queue_len_cache.invalidate_key(holder.replica_id)
    assert (await client.choose(client.request()))[0] == [holder]


async def test_load_that_other_routers_bring_is_seen() -> None:
    replicas = fleet(2, max_ongoing_requests=100)
    router, client = serving(replicas, options={"policy": "least-loaded"})
    router.on_new_queue_len_info(replicas[0].replica_id, 50)
    for _ in range(10):
        assert (await client.choose(client.request(None)))[0] == [replicas[1]]


async def test_unavailable_replica_is_passed_over_until_its_queue_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_module, "_UNAVAILABLE_S", 3600.0)
    router, client = serving(fleet())
    holder = await client.serve_whole()
    router.on_replica_actor_unavailable(holder.replica_id)
    groups = await client.choose(client.request())
    assert groups[0] != [holder]
    assert holder in groups[-1], "Serve may still try it, last"
    assert await client.choose(client.request(), [holder]) == [[holder]], "no other replica is there"
    assert router.counters()["no_worker"] == 1
    assert router.fleet.loads()[holder.key] == 0
    router.on_new_queue_len_info(holder.replica_id, 0)
    assert await client.choose(client.request(), [holder]) == [[holder]]
    assert router.counters()["no_worker"] == 1


# --- replicas that come and go ---


async def test_scale_down_forgets_the_replica_with_its_load() -> None:
    """Only `update_replicas` shows it; nothing dies."""
    replicas = fleet()
    router, client = serving(replicas)
    request = client.request()
    gone = await client.serve(request)
    left = [replica for replica in replicas if replica is not gone]
    set_replicas(router, left)
    assert gone.key not in router.fleet.keys()  # noqa: SIM118 - a method of the router
    assert loads(router) == 0
    client.finish(request, gone)
    assert loads(router) == 0
    assert held(router) == set()
    assert (await client.choose(client.request()))[0][0] in left


# --- locality and multiplexed models ---


async def test_replicas_on_the_same_node_come_first_and_once() -> None:
    near, far = FakeReplica("near"), FakeReplica("far", node_id="elsewhere")
    _, client = serving([near, far], prefer_local_node_routing=True)
    request = client.request()
    assert await client.choose(request) == [[near]]
    assert request.routing_context.should_backoff is False
    assert {replica for group in await client.choose(request) for replica in group} == {near, far}


async def test_replicas_with_the_model_come_first() -> None:
    replicas = [FakeReplica("a", models=["base", "french"]), FakeReplica("b", models=["german"]), FakeReplica("c")]
    client = Client(make_router(replicas))
    groups = await client.choose(client.request(multiplexed_model_id="german"))
    assert groups == [[replicas[1]]]


async def test_prompts_of_different_models_do_not_match() -> None:
    router, client = serving(fleet(3, models=["french", "german"]))
    await client.serve(client.request(multiplexed_model_id="french"))
    assert router.fleet.explain(text=STORY, lora="french", among=None).matched_tokens > 0
    await client.serve(client.request(multiplexed_model_id="german"))
    assert router.fleet.stats().decisions.get(("cache-aware", "prefix"), 0) == 0
