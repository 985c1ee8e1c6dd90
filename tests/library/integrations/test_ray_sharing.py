"""Placements that the routers of several processes share, with the log in this process instead of in an actor."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.waiting import until

from cachelb import Router
from cachelb.integrations.parsed import as_body
from cachelb.integrations.ray_serve.messages import MessageLog, News, Reply
from cachelb.integrations.ray_serve.placements import decode, encode
from cachelb.integrations.ray_serve.sharing import Sharing

STORY = "Once upon a time, in a land far away, there lived a small dragon. " * 20
WORKERS = ["a", "b", "c"]


class Link:
    """The way to a log, which may break."""

    def __init__(self) -> None:
        self.log = MessageLog()
        self.broken = False
        self.batches: list[int] = []

    def __call__(self, who: str, life: str, cursor: int, news: News) -> Reply:
        if self.broken:
            raise ConnectionError("no actor")
        self.batches.append(len(news.published))
        return self.log.trade(who, life, cursor, news)


def sharing(router: Router[str], link: Link, **options: Any) -> Sharing:
    return Sharing(router, lambda: link, **options)


def placed(worker: str, prompt: str, *, lora: str | None = None, session: str | None = None, **body: str) -> bytes:
    found = encode(worker, {**as_body(body, prompt=prompt), "lora": lora, "session": session})
    assert found is not None
    return found


def matched(router: Router[str], prompt: str, **identity: str) -> dict[str, float]:
    workers = router.explain(text=prompt, **identity).candidates  # type: ignore[arg-type]
    return {worker.key: worker.matched_tokens for worker in workers if worker.matched_tokens}


# --- messages ---


@pytest.mark.parametrize(
    "arguments",
    [
        {"body": b'{"prompt": "a\\nb"}', "path": "/v1/completions", "session": "\ud800", "lora": "french"},
        {"tokens": [1, 10, 1 << 31]},
        {"tokens": range(300), "body": b"{}\n", "path": "/v1/chat/completions"},
    ],
)
def test_message_holds_the_arguments_of_the_request(arguments: dict[str, Any]) -> None:
    message = encode("a", arguments)
    assert message is not None
    found = decode(message)
    tokens = found.get("tokens", b"")
    assert list(memoryview(tokens).cast("I")) == list(arguments.get("tokens", []))
    assert {**found, "tokens": tokens} == {**arguments, "among": ["a"], "tokens": tokens}


@pytest.mark.parametrize("arguments", [{}, {"body": b""}, {"session": "s"}, {"tokens": []}])
def test_request_without_a_prompt_is_no_placement(arguments: dict[str, Any]) -> None:
    assert encode("a", arguments) is None


# --- a router's end ---


async def test_router_that_starts_anew_gets_the_state() -> None:
    link = Link()
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
    link = Link()
    link.log.trade("other", "", 0, News([placed("stranger", STORY)]))
    here = sharing(Router(WORKERS, seed=1), link)
    await here.trade(link)
    assert (here.counters.strangers, here.counters.received) == (1, 0)


def test_outbox_is_bounded() -> None:
    link = Link()
    here = sharing(Router(WORKERS, seed=1), link, outbox_bytes=4_500)
    for at in range(10):
        here.publish(placed("a", f"{at} {STORY}"))
    assert here.counters.dropped == 7
    asyncio.run(here.trade(link))
    assert (link.batches, here.counters.sent) == ([3], 3)


async def test_state_is_told_again_after_the_actor_started_anew() -> None:
    link = Link()
    one, two = (sharing(Router(WORKERS, seed=seed), link) for seed in (1, 2))
    for at in range(3):
        one.publish(placed("a", f"{at} {STORY}"))
    await one.trade(link)
    await two.trade(link)
    link.log = MessageLog()
    one.publish(placed("a", f"after {STORY}"))
    while await one.trade(link):
        pass
    while await two.trade(link):
        pass
    assert two.counters.received == 4


async def test_task_trades_and_goes_on_after_failures(caplog: pytest.LogCaptureFixture) -> None:
    link = Link()
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
    end = sharing(Router(WORKERS, seed=1), Link(), interval_s=0.001)
    end.start()
    task = end._task
    assert task is not None
    del end
    await asyncio.wait_for(task, 30)
