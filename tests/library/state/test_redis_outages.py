"""A Redis server that is away, refuses, or lost what it had: routing goes on, and so does sharing, by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.library.state.redis_server import RedisServer
from tests.library.state.transports import STORY, RedisFleet, load, make_router, matched, routers
from tests.waiting import wait_until

from cachelb import Router
from cachelb.state import RedisState


@pytest.fixture(autouse=True)
def patience() -> None:
    """None: it takes two seconds to notice that a server is away."""


@contextmanager
def working_before_and_after(server: RedisServer) -> Iterator[list[tuple[Router[str], RedisState]]]:
    """Two routers that share, then do not because of what the body does to the server, then do again."""
    with routers(RedisFleet(server), 2, peer_timeout_s=1.0) as found:
        (router, _), (other, _) = found
        before = router.select_worker(tokens=STORY)
        wait_until(lambda: load(other) == 1)
        yield found
        # It heals.
        wait_until(lambda: not any(state.stats().failing for _, state in found))
        before.on_complete()
        after = [each.select_worker(tokens=[at, *STORY]) for at, (each, _) in enumerate(found)]
        # Two in all may be the one that has ended and one of the new ones, for as long as messages are under way.
        wait_until(lambda: load(router) == load(other) == 2 and router.loads() == other.loads())
        wait_until(lambda: all(matched(each, [at, *STORY]) == 992 for each, _ in found for at in range(2)))
        for decision in after:
            decision.on_complete()
        wait_until(lambda: load(router) == load(other) == 0)


def failed_start(router: Router[str], state: RedisState) -> str:
    """Attach until the first attempt to connect has failed before the start is over. Returns how it started."""

    def fails_in_time() -> bool:
        router.attach(state)
        if "redis://" in state.stats().start:
            return True
        router.detach(state)
        return False

    wait_until(fails_in_time)
    return state.stats().start


def all_fail(found: list[tuple[Router[str], RedisState]], why: str) -> bool:
    return all(why in state.stats().failing for _, state in found)


def missed_placements(found: list[tuple[Router[str], RedisState]]) -> None:
    """Route while nothing is shared. The others must know of it later."""
    (router, _), (other, _) = found
    for at in range(20):
        router.select_worker(tokens=[100 + at, *STORY]).on_complete()
    assert matched(other, [100, *STORY]) == 0


def heard_of_them(other: Router[str]) -> bool:
    return all(matched(other, [100 + at, *STORY]) == 992 for at in range(20))


@pytest.mark.parametrize("keeps", [True, False], ids=["with its data", "without its data"])
def test_server_that_is_restarted(tmp_path: Path, *, keeps: bool) -> None:
    options = ("--appendonly", "yes", "--appendfsync", "always") if keeps else ()
    with RedisServer(tmp_path, *options) as server, working_before_and_after(server) as found:
        server.kill()
        wait_until(lambda: all_fail(found, "refused"))
        # A peer leaves the statistics a moment before its load expires.
        wait_until(lambda: not any(state.stats().peers for _, state in found) and load(found[1][0]) == 0)
        missed_placements(found)
        server.start()
        wait_until(lambda: heard_of_them(found[1][0]))
        wait_until(lambda: load(found[1][0]) == 1)


def test_server_that_does_not_answer(server: RedisServer) -> None:
    with working_before_and_after(server) as found:
        server.freeze()
        try:
            missed_placements(found)
            wait_until(lambda: all(state.stats().failing for _, state in found))
            assert load(found[0][0]) == 1, "its own load it knows"
        finally:
            server.thaw()
        wait_until(lambda: heard_of_them(found[1][0]))


@pytest.mark.parametrize(
    ("wrong", "why", "right"),
    [
        ("CONFIG SET maxmemory 1", "maxmemory", "CONFIG SET maxmemory 0"),
        ("REPLICAOF 127.0.0.1 1", "read only", "REPLICAOF NO ONE"),
    ],
    ids=["without memory", "read only"],
)
def test_server_that_refuses(server: RedisServer, wrong: str, why: str, right: str) -> None:
    with working_before_and_after(server) as found, server.client() as client:
        client.execute_command(*wrong.split())
        wait_until(lambda: all_fail(found, why))
        missed_placements(found)
        client.execute_command(*right.split())
        wait_until(lambda: heard_of_them(found[1][0]))


def test_server_that_is_flushed(server: RedisServer) -> None:
    with working_before_and_after(server) as found, server.client() as client:
        for _ in range(5):
            missed = found[0][0].select_worker(tokens=[7, *STORY])
            client.flushall()
            missed.on_complete()
        wait_until(lambda: matched(found[1][0], [7, *STORY]) == 992)


@contextmanager
def two(server: RedisServer) -> Iterator[list[tuple[Router[str], RedisState]]]:
    """Two routers on a stream that was prepared."""
    with make_router() as router, make_router() as other:
        found = [(each, RedisFleet(server, "prepared").member()) for each in (router, other)]
        for each, state in found:
            each.attach(state)
        yield found


def test_stream_that_begins_again_with_lower_numbers(server: RedisServer) -> None:
    """As after a failover to a server whose clock is behind."""
    keys = ("prepared", "prepared:beats")
    with server.client() as client:
        for key in keys:
            client.xadd(key, {"f": b""}, id="9999999999999-0")
        with two(server) as ((router, _), (other, _)):
            with router.select_worker(tokens=STORY):
                wait_until(lambda: load(other) == 1)
            wait_until(lambda: load(other) == 0)
            client.delete(*keys)
            with router.select_worker(tokens=[1, *STORY]):
                wait_until(lambda: load(other) == 1)
                wait_until(lambda: matched(other, [1, *STORY]) == 992)
            wait_until(lambda: load(other) == 0)


def test_stream_whose_name_is_taken_by_something_else(server: RedisServer) -> None:
    with server.client() as client:
        client.set("prepared", "a text")
        with two(server) as found:
            wait_until(lambda: all_fail(found, "wrong kind of value"))
            with found[0][0].select_worker(tokens=STORY):
                client.delete("prepared")
                wait_until(lambda: load(found[1][0]) == 1)


def test_what_was_under_way_is_sent_again_and_nobody_asks(tmp_path: Path) -> None:
    with (
        RedisServer(tmp_path, "--appendonly", "yes", "--appendfsync", "always") as server,
        routers(RedisFleet(server), 2, peer_timeout_s=60.0) as found,
    ):
        (router, state), (other, heard) = found
        wait_until(lambda: heard.stats().snapshots > 0)
        gaps = heard.stats().gaps
        server.freeze()
        decisions = [router.select_worker(tokens=[at, *STORY]) for at in range(10)]
        sent = state.stats().sent
        wait_until(lambda: state.stats().sent > sent)
        # It is given up, and tried in vain more than once.
        failures = state.stats().failures
        wait_until(lambda: state.stats().failures > failures + 2)
        server.kill()
        server.start()
        wait_until(lambda: load(other) == 10)
        for decision in decisions:
            decision.on_complete()
        wait_until(lambda: load(other) == 0)
        wait_until(lambda: all(matched(other, [at, *STORY]) == 992 for at in range(10)))
        assert heard.stats().gaps == gaps


def test_router_starts_without_a_server_and_shares_once_there_is_one(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    server.kill()
    with ExitStack() as stack:
        found = [(stack.enter_context(make_router()), RedisState(server.url, warm_start_s=1.0)) for _ in range(2)]
        for router, state in found:
            start = failed_start(router, state)
            assert start.startswith("cold: no peer sent state within 1 s, redis://127.0.0.1"), start
            assert "refused" in start
        decision = found[0][0].select_worker(tokens=STORY)
        try:
            server.start()
            wait_until(lambda: load(found[1][0]) == 1)
            decision.on_complete()
        finally:
            server.kill()


def test_wrong_password_is_told_and_kept_to_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with RedisServer(tmp_path, password="the right one") as server, ExitStack() as stack:  # noqa: S106 - of a test
        found: list[tuple[Router[str], RedisState]] = []
        for password in ("the%20right%20one", "guessed%2Fpass"):
            state = RedisState(server.url_with(password), warm_start_s=1.0)
            found.append((stack.enter_context(make_router()), state))
        (right, its_state), (router, wrong) = found
        right.attach(its_state)
        failed_start(router, wrong)
        failing = wrong.stats().failing
        assert "invalid username-password pair" in failing
        assert failing in wrong.stats().start
        wait_until(lambda: its_state.stats().failing == "")
        decision = router.select_worker(tokens=STORY)
        for told in (caplog.text, failing, repr(wrong), wrong.stats().start):
            assert "guessed" not in told
        assert "invalid username-password pair" in caplog.text
        with server.client() as client:
            client.config_set("requirepass", "guessed/pass")
        # Connections that are open stay so; both share now.
        wait_until(lambda: load(right) == 1)
        decision.on_complete()
