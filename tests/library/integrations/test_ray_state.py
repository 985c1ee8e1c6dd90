"""Routers that share load and placements through a log, which is in this process instead of in an actor."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import pytest
import ray
from hypothesis import given
from hypothesis import strategies as st
from ray.exceptions import RayActorError
from tests.library.state.transports import STORY, load, make_router, matched, routers
from tests.waiting import wait_until

from cachelb.integrations.ray_serve import actor
from cachelb.integrations.ray_serve.carrier import Trade
from cachelb.integrations.ray_serve.messages import MessageLog, News, Reply
from cachelb.integrations.ray_serve.state import RayState, close_with

DEAD_S = 1.0


class Link:
    """The way to a log, which may break."""

    def __init__(self, max_bytes: int = 16 << 20) -> None:
        self.log = MessageLog(max_bytes)
        self.broken = False
        self._lock = threading.Lock()

    def member(self, **options: Any) -> LinkedState:
        return LinkedState(self, **options)

    def connect(self) -> Trade:
        if self.broken:
            raise ConnectionError("no actor")
        return self.trade

    def trade(self, who: str, life: str, cursor: int, news: News) -> Reply:
        if self.broken:
            raise ConnectionError("the actor does not answer")
        with self._lock:  # an actor does one thing after the other
            return self.log.trade(who, life, cursor, news)


class LinkedState(RayState):
    def __init__(self, link: Link, **options: Any) -> None:
        super().__init__("test", **{"interval_s": 0.005, "peer_timeout_s": 60.0, **options})
        self._link = link

    def _connector(self) -> Callable[[], Trade]:
        return self._link.connect


def test_load_and_placements_of_one_are_known_to_all() -> None:
    with routers(Link(), 3) as found:
        decisions = [router.select_worker(tokens=[at, *STORY]) for at, (router, _) in enumerate(found)]
        wait_until(lambda: all(load(router) == 3 for router, _ in found))
        wait_until(lambda: all(router.loads() == found[0][0].loads() for router, _ in found))
        wait_until(lambda: all(matched(router, [at, *STORY]) == 992 for router, _ in found for at in range(3)))
        for decision in decisions:
            decision.on_complete()
        wait_until(lambda: all(load(router) == 0 for router, _ in found))
        peers = found[0][1].stats().peers
        assert len({peer.address for peer in peers}) == 2, "each has a name of its own"


def test_a_router_that_comes_later_is_told_everything() -> None:
    link = Link(max_bytes=20_000)
    with routers(link, 2) as found:
        (router, _), (other, _) = found
        open_decision = router.select_worker(tokens=[1, *STORY])
        for at in range(2, 40):
            other.select_worker(tokens=[at, *STORY]).on_complete()
        wait_until(lambda: matched(router, [39, *STORY]) == 992)
        with make_router() as third:
            state = link.member(warm_start_s=60.0)
            third.attach(state)
            assert state.stats().start == "warm: received from another router"
            wait_until(lambda: load(third) == 1)
            wait_until(lambda: all(matched(third, [at, *STORY]) == 992 for at in range(1, 40)))
            assert link.log.stats()["bytes"] <= 20_000
        open_decision.on_complete()


@pytest.mark.parametrize("anew", [True, False], ids=["the actor was lost", "it was out of reach"])
def test_routers_agree_again_after_the_actor_was_away(*, anew: bool) -> None:
    link = Link()
    with routers(link, 2, peer_timeout_s=DEAD_S) as found:
        (router, state), (other, other_state) = found
        decisions = [router.select_worker(tokens=[at, *STORY]) for at in range(10)]
        wait_until(lambda: load(other) == 10)
        link.broken = True
        wait_until(lambda: not state.stats().peers and not other_state.stats().peers)
        wait_until(lambda: load(other) == 0)  # load of a lost peer expires
        for decision in decisions[:5]:
            decision.on_complete()
        decisions += [router.select_worker(tokens=[at, *STORY]) for at in range(10, 20)]
        if anew:
            link.log = MessageLog()
        link.broken = False
        wait_until(lambda: router.loads() == other.loads() and load(other) == 15)
        wait_until(lambda: all(matched(other, [at, *STORY]) == 992 for at in range(20)))
        for decision in decisions[5:]:
            decision.on_complete()
        wait_until(lambda: load(router) == load(other) == 0)
        assert state.stats().failures > 0


def test_a_router_is_closed_when_its_owner_is_dropped() -> None:
    class Owner:
        """As Serve's request router."""

    with routers(Link(), 2, peer_timeout_s=DEAD_S) as found:
        (router, state), (_, other_state) = found
        owner = Owner()
        close_with(owner, router)
        gone = weakref.ref(owner)
        del owner
        gc.collect()
        assert gone() is None
        wait_until(lambda: other_state.stats().peers == ())

        def is_closed() -> bool:
            try:
                state.stats()
            except RuntimeError as error:
                return "State is not attached" in str(error)
            return False

        wait_until(is_closed)  # in a thread of its own
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("cachelb-state")])


@pytest.mark.parametrize("error", [SystemExit(0), RayActorError()], ids=["Ray shuts down", "the actor is dead"])
def test_what_ray_raises_in_a_thread_that_waits_does_not_end_it(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(actor, "_detached", lambda *_, **__: MagicMock())
    monkeypatch.setattr(actor, "_check_ray", lambda: None)
    monkeypatch.setattr(ray, "get", fail)
    trade = actor.trader("test", 1, ends_with_serve=False)()
    with pytest.raises(ConnectionError):
        trade("one", "", 0, News())


def test_without_ray_there_is_no_actor_and_none_is_started() -> None:
    with pytest.raises(ConnectionError, match="Ray was shut down"):
        actor.trader("test", 1, ends_with_serve=False)()
    assert not ray.is_initialized()


# --- the log ---


CALLS = st.lists(st.tuples(st.integers(0, 3), st.lists(st.binary(max_size=8), max_size=4), st.booleans()), max_size=60)


@given(CALLS)
def test_everyone_hears_everything_of_the_others_once_and_in_order(calls: list[tuple[int, list[bytes], bool]]) -> None:
    log, said = MessageLog(), list[tuple[str, bytes]]()
    since: dict[str, tuple[str, int]] = {}
    heard: dict[str, list[tuple[str, bytes]]] = {}

    def call(who: str, messages: list[bytes]) -> None:
        life, cursor = since.get(who, ("", 0))
        reply = log.trade(who, life, cursor, News(messages))
        assert not reply.more
        since[who] = reply.life, reply.cursor
        said.extend((who, message) for message in messages)
        heard.setdefault(who, []).extend(reply.received)

    for number, messages, again in calls:
        call(str(number), messages)
        if again:
            call(str(number), [])
    for who in list(heard):
        call(who, [])
    for who, found in heard.items():
        assert found == [(sender, message) for sender, message in said if sender != who]


@given(CALLS, st.integers(1, 40))
def test_the_log_keeps_the_newest_bytes(calls: list[tuple[int, list[bytes], bool]], most: int) -> None:
    log, said = MessageLog(most), list[bytes]()
    for number, messages, _ in calls:
        log.trade(str(number), "", 0, News(messages))
        said += messages
    left = [message for _, message in log.trade("new", "", 0, News()).received]
    stats = log.stats()
    assert stats["bytes"] == sum(map(len, left)) <= most
    assert stats["messages"] == len(left)
    assert left == said[len(said) - len(left) :]
    dropped = said[: len(said) - len(left)]
    assert not dropped or sum(map(len, left)) + len(dropped[-1]) > most or not dropped[-1], "no more than it must"


def test_questions_and_answers_find_their_way_and_are_bounded() -> None:
    log = MessageLog(100)
    for who in ("one", "two"):
        log.trade(who, "", 0, News())
    log.trade("one", "", 0, News(asks=["two", "nobody", "two"]))
    assert log.trade("two", "", 0, News()).asked == ["one"]
    assert log.trade("two", "", 0, News()).asked == []
    log.trade("two", "", 0, News(answers=[("one", [b"a", b"b"]), ("nobody", [b"c"]), ("one", [bytes(100)])]))
    assert log.stats()["answer_bytes"] == 2
    assert log.trade("one", "", 0, News()).answers == [("two", b"a"), ("two", b"b")]
    assert log.stats()["answer_bytes"] == 0


def test_large_news_come_in_pages() -> None:
    log = MessageLog(64 << 20)
    for at in range(10):
        log.trade("one", "", 0, News([bytes([at]) * (1 << 20)]))
    life, cursor, more, pages, heard = "", 0, True, 0, list[int]()
    while more:
        reply = log.trade("two", life, cursor, News())
        life, cursor, more = reply.life, reply.cursor, reply.more
        heard += [message[0] for _, message in reply.received]
        pages += 1
    assert (heard, pages) == (list(range(10)), 3)


def test_boxes_of_routers_that_are_gone_are_dropped() -> None:
    now = 0.0
    log = MessageLog(clock=lambda: now)
    log.trade("one", "", 0, News())
    log.trade("two", "", 0, News(answers=[("one", [b"abc"])]))
    now = 61.0
    log.trade("two", "", 0, News())
    assert log.stats() == {"routers": 1, "messages": 0, "bytes": 0, "answers": 0, "answer_bytes": 0}
