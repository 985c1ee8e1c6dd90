"""Placements that the routers of several processes share, with the store in this process instead of in an actor."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.waiting import until

from cachelb import Router
from cachelb.integrations.parsed import as_body
from cachelb.integrations.ray_serve.placements import Placement, PlacementStore, Reply, placement_of
from cachelb.integrations.ray_serve.sharing import Sharing

STORY = "Once upon a time, in a land far away, there lived a small dragon. " * 20
WORKERS = ["a", "b", "c"]


class Link:
    """The way to a store, which may break."""

    def __init__(self, store: PlacementStore) -> None:
        self.store = store
        self.broken = False
        self.batches: list[int] = []

    async def __call__(self, origin: str, since: int, placements: list[Placement], gone: list[str]) -> Reply:
        if self.broken:
            raise ConnectionError("no actor")
        self.batches.append(len(placements))
        return self.store.exchange(origin, since, placements, gone)


def sharing(router: Router[str], link: Link, **options: Any) -> Sharing:
    return Sharing(router, lambda: link, **options)


def placed(worker: str, prompt: str, *, lora: str | None = None, session: str | None = None, **body: str) -> Placement:
    found = placement_of(worker, {**as_body(body, prompt=prompt), "lora": lora, "session": session})
    assert found is not None
    return found


def matched(router: Router[str], prompt: str, **identity: str) -> dict[str, float]:
    workers = router.explain(text=prompt, **identity).candidates  # type: ignore[arg-type]
    return {worker.key: worker.matched_tokens for worker in workers if worker.matched_tokens}


# --- the store ---


def test_placement_reaches_the_others_and_not_its_origin() -> None:
    store = PlacementStore()
    assert store.exchange("one", 0, [placed("a", STORY)]).placements == []
    reply = store.exchange("two", 0, [])
    assert reply.placements == [placed("a", STORY)]
    assert store.exchange("two", reply.cursor, []).placements == []


def test_longer_prompt_takes_the_place_of_its_beginning() -> None:
    store = PlacementStore()
    turns = [STORY, STORY + "What then? " * 30, STORY + "What then? " * 30 + "The end. " * 40]
    store.exchange("one", 0, [placed("a", turn) for turn in turns])
    store.exchange("one", 0, [placed("b", turns[0]), placed("a", turns[2], lora="french")])
    told = store.exchange("two", 0, []).placements
    assert told == [placed("a", turns[2]), placed("b", turns[0]), placed("a", turns[2], lora="french")]


def test_token_prompts_are_kept_like_texts() -> None:
    store = PlacementStore()
    short, long = (placement_of("a", {"tokens": list(range(n))}) for n in (128, 300))
    assert short is not None
    assert long is not None
    store.exchange("one", 0, [short, long])
    (told,) = store.exchange("two", 0, []).placements
    router = Router(["a"], seed=1)
    router.select_worker(**told.arguments()).on_complete()
    assert router.select_worker(tokens=list(range(300)), dry_run=True).matched_tokens == 288


@pytest.mark.parametrize("arguments", [{}, {"body": b""}, {"session": "s"}, {"tokens": []}])
def test_request_without_a_prompt_is_no_placement(arguments: dict[str, Any]) -> None:
    assert placement_of("a", arguments) is None


def test_store_stays_below_its_bytes_and_drops_the_oldest() -> None:
    store = PlacementStore(max_bytes=20_000)
    for at in range(100):
        store.exchange("one", 0, [placed("a", f"{at} {STORY}")])
    told = store.exchange("two", 0, []).placements
    assert told[-1] == placed("a", f"99 {STORY}")
    assert 20_000 - told[-1].size < sum(placement.size for placement in told) <= 20_000


def test_placements_of_replicas_that_are_gone_go_too() -> None:
    store = PlacementStore()
    store.exchange("one", 0, [placed("a", STORY), placed("b", STORY)])
    store.exchange("one", 0, [], ["a"])
    assert [placement.worker for placement in store.exchange("two", 0, []).placements] == ["b"]


def test_large_state_comes_in_pages() -> None:
    store = PlacementStore()
    text = "x" * 500_000
    store.exchange("one", 0, [placed("a", f"{at} {text}") for at in range(20)])
    cursor, pages, told = 0, 0, []
    more = True
    while more:
        reply = store.exchange("two", cursor, [])
        cursor, more = reply.cursor, reply.more
        told += reply.placements
        pages += 1
    assert [json.loads(placement.body)["prompt"][:2].strip() for placement in told] == [str(at) for at in range(20)]
    assert pages == 3


def test_prompt_is_not_shown() -> None:
    placement = placed("a", "the secret", cache_salt="salt", session="s1")
    assert repr(placement) == "Placement(worker='a', ...)"


# --- a router's end ---


async def test_router_that_starts_anew_gets_the_state() -> None:
    link = Link(PlacementStore())
    old = sharing(Router(WORKERS, seed=1), link)
    old.publish(placed("b", STORY, lora="french", cache_salt="s", session="chat"))
    await old.trade(link)
    router = Router(WORKERS, seed=2)
    new = sharing(router, link)
    await new.trade(link)
    assert set(matched(router, STORY, lora="french", cache_salt="s")) == {"b"}
    assert matched(router, STORY) == {}
    assert sum(router.loads().values()) == 0
    assert (old.counters.sent, new.counters.received) == (1, 1)


async def test_placement_at_an_unknown_replica_is_counted() -> None:
    link = Link(PlacementStore())
    link.store.exchange("other", 0, [placed("stranger", STORY)])
    here = sharing(Router(WORKERS, seed=1), link)
    await here.trade(link)
    assert (here.counters.strangers, here.counters.received) == (1, 0)


def test_outbox_is_bounded() -> None:
    link = Link(PlacementStore())
    here = sharing(Router(WORKERS, seed=1), link, outbox_bytes=5_000)
    for at in range(10):
        here.publish(placed("a", f"{at} {STORY}"))
    assert here.counters.dropped == 7
    asyncio.run(here.trade(link))
    assert (link.batches, here.counters.sent) == ([3], 3)


async def test_state_is_told_again_after_the_actor_started_anew() -> None:
    link = Link(PlacementStore())
    one, two = (sharing(Router(WORKERS, seed=seed), link) for seed in (1, 2))
    for at in range(3):
        one.publish(placed("a", f"{at} {STORY}"))
    await one.trade(link)
    await two.trade(link)
    link.store = PlacementStore()
    one.publish(placed("a", f"after {STORY}"))
    while await one.trade(link):
        pass
    while await two.trade(link):
        pass
    assert two.counters.received == 4


async def test_task_trades_and_goes_on_after_failures(caplog: pytest.LogCaptureFixture) -> None:
    link = Link(PlacementStore())
    routers = [Router(WORKERS, seed=seed) for seed in (1, 2)]
    ends = [sharing(router, link, interval_s=0.005) for router in routers]
    link.broken = True
    for end in ends:
        end.start()
        end.start()
    await until(lambda: all(end.counters.failures >= 2 for end in ends))
    assert len(caplog.messages) == 2, "one line each, whatever the number of failures"
    assert STORY[:9] not in caplog.text
    link.broken = False
    ends[0].publish(placed("c", STORY))
    await until(lambda: ends[1].counters.received)
    assert set(matched(routers[1], STORY)) == {"c"}
    for end in ends:
        end.stop()


async def test_task_ends_when_its_router_is_dropped() -> None:
    end = sharing(Router(WORKERS, seed=1), Link(PlacementStore()), interval_s=0.001)
    end.start()
    task = end._task
    assert task is not None
    del end
    await asyncio.wait_for(task, 30)
