"""A router releases every booking, whatever happens to the request: cases S1 to S13 of the life of a booking."""

from __future__ import annotations

import contextlib
import gc
import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.library.index.test_threads import run

import cachelb
from cachelb import Decision, Health, Pairs, Router
from cachelb.testing import ManualClock
from cachelb.types import WorkerStats

PROMPT = range(64)


def make(workers: tuple[str, ...] = ("a", "b"), **options: Any) -> tuple[Router[str], ManualClock]:
    clock = ManualClock()
    settings: dict[str, Any] = {"seed": 1, "policy": "least-loaded", "clock": clock, **options}
    return cachelb.Router(workers, **settings), clock


def row(router: Router[str], key: str) -> WorkerStats:
    return next(row for row in router.stats().workers if row.key == key)


def endings(router: Router[str]) -> dict[str, int]:
    return {ending: n for ending, n in router.stats().endings.items() if n}


def on(router: Router[str], key: str) -> Decision[str]:
    return router.select_worker(tokens=PROMPT, among=[key])


# --- S1 to S6, S9: once, and exactly what was booked ---


def test_s6_a_request_that_streams_for_hours_is_never_freed_and_a_silent_one_expires() -> None:
    router, clock = make(health=Health(booking_ttl_s=3600))
    streaming, silent = on(router, "a"), on(router, "b")
    streaming.on_first_token()
    for _ in range(5 * 60):
        clock.advance(60)
        streaming.on_tokens(1)
        router.select_worker(by_load=True).cancel()
    assert streaming.is_open
    assert not silent.is_open
    assert endings(router) == {"expired": 1, "cancelled": 300}
    assert router.loads() == {"a": 1, "b": 0}
    silent.on_complete()
    assert endings(router)["expired"] == 1


# --- S8: reports against bookings ---


def test_s8_two_reports_that_agree_drop_the_oldest_bookings_beyond_them() -> None:
    router, clock = make(health=Health(reconcile_grace_s=30))
    decisions = [on(router, "a") for _ in range(3)]
    clock.advance(31)
    router.load_sink.update_load("a", running=1, waiting=0)
    assert router.loads()["a"] == 3
    clock.advance(0.1)
    router.load_sink.update_load("a", running=0, waiting=1)
    assert [decision.is_open for decision in decisions] == [False, False, True]
    assert endings(router) == {"reconciled": 2}
    for decision in decisions:
        decision.on_complete()
    assert endings(router) == {"reconciled": 2, "completed": 1}


@pytest.mark.parametrize(
    ("grace", "report"),
    [(None, {"running": 0, "waiting": 0}), (30, {"running": 0}), (30, {"running": 0, "waiting": 0, "age_s": 2.1})],
    ids=["off", "half a report", "a stale report"],
)
def test_reports_drop_nothing(grace: float | None, report: dict[str, Any]) -> None:
    router, clock = make(health=Health(reconcile_grace_s=grace, max_report_age_s=2.0))
    decision = on(router, "a")
    for _ in range(5):
        clock.advance(100)
        router.load_sink.update_load("a", **report)
    assert decision.is_open
    decision.cancel()


def test_a_report_above_the_bookings_raises_the_load_while_it_is_fresh() -> None:
    router, clock = make(health=Health(max_report_age_s=2.0))
    router.load_sink.update_load("a", running=3, waiting=2)
    picks = [router.select_worker(by_load=True) for _ in range(6)]
    assert [pick.key for pick in picks[:5]] == ["b"] * 5
    assert router.loads()["a"] <= 1, "a report never creates bookings"
    for pick in picks:
        pick.cancel()
    clock.advance(2.1)
    picks = [router.select_worker(by_load=True) for _ in range(4)]
    assert router.loads() == {"a": 2, "b": 2}


def test_a_report_that_was_overtaken_changes_nothing() -> None:
    router, clock = make(health=Health(reconcile_grace_s=30))
    held = [on(router, "a") for _ in range(2)]
    clock.advance(100)
    router.load_sink.update_load("a", running=2, waiting=0)
    for age in (1.5, 1.0):
        router.load_sink.update_load("a", running=0, waiting=0, age_s=age)
    row = router.stats().workers[0]
    assert (row.running, row.report_age_s) == (2, 0)
    assert all(decision.is_open for decision in held)
    router.load_sink.update_load("a", running=1, waiting=1)
    assert router.stats().workers[0].running == 1, "of equal age, the later one"
    for decision in held:
        decision.cancel()


# --- S10, S13: placements ---


# --- effects of failures on workers ---


def break_once(router: Router[str], error: BaseException | int) -> None:
    on(router, "a").on_error(error)


def picks(router: Router[str], n: int = 6) -> set[str]:
    decisions = [router.select_worker(by_load=True) for _ in range(n)]
    keys = {decision.key for decision in decisions}
    for decision in decisions:
        decision.cancel()
    return keys


@pytest.mark.parametrize("error", [500, 502, 504, TimeoutError()], ids=repr)
def test_failures_before_the_first_byte_trip_the_breaker_for_the_cooldown(error: BaseException | int) -> None:
    router, clock = make(health=Health(breaker_failures=3, breaker_cooldown_s=5))
    for _ in range(2):
        break_once(router, error)
    assert picks(router) == {"a", "b"}
    break_once(router, error)
    assert picks(router) == {"b"}
    assert router.explain().candidates
    clock.advance(4.9)
    assert picks(router) == {"b"}
    clock.advance(0.1)
    assert picks(router) == {"a", "b"}


@pytest.mark.parametrize(
    "end",
    [
        lambda decision: decision.on_error(404),
        lambda decision: decision.cancel(),
        lambda decision: (decision.on_first_token(), decision.on_error(ConnectionResetError())),
        lambda decision: None,
    ],
    ids=["client", "cancelled", "after the first byte", "abandoned"],
)
def test_what_says_nothing_about_a_worker_never_trips(end: Callable[[Any], object]) -> None:
    router, _ = make(health=Health(breaker_failures=1))
    for _ in range(10):
        end(on(router, "a"))
    assert picks(router) == {"a", "b"}


def test_workers_that_all_failed_are_still_used() -> None:
    router, _ = make(health=Health(breaker_failures=1))
    on(router, "a").on_error(500)
    on(router, "b").on_error(429)
    assert picks(router, 20) == {"a", "b"}


# --- pairs ---


def pairs(**options: Any) -> tuple[Router[str], ManualClock]:
    router, clock = make((), **{"pairs": Pairs(uncached_token_threshold=0), **options})
    for key in ("p1", "p2"):
        router.add_worker(key, role="prefill")
    for key in ("d1", "d2"):
        router.add_worker(key, role="decode")
    return router, clock


def test_the_decisions_of_a_pair_have_ids_and_explanations_of_their_own() -> None:
    router, _ = pairs()
    pair = router.select_pair(tokens=PROMPT)
    assert pair.prefill is not None
    assert pair.prefill.id != pair.decode.id
    for decision in (pair.prefill, pair.decode):
        assert [row.key for row in decision.explain().candidates if row.picked] == [decision.key]
    pair.cancel()
    assert len({record.id for record in router.records.recent()}) == 2


def test_the_retry_of_a_pair_excludes_only_the_half_that_failed() -> None:
    router, _ = pairs()
    pair = router.select_pair(tokens=PROMPT)
    assert pair.prefill is not None
    failed = pair.prefill.key
    pair.on_error(500)
    again = pair.retry()
    assert again.prefill is not None
    assert again.prefill.key != failed
    assert again.decode.key in {"d1", "d2"}
    again.on_first_token()
    failed = again.decode.key
    third = again.retry()
    assert third.decode.key != failed
    assert third.prefill is not None
    assert sum(router.loads().values()) == 2
    with pytest.raises(cachelb.NoWorkerAvailable):
        third.retry().retry()
    assert set(router.loads().values()) == {0}


# --- threads ---


@pytest.mark.parametrize("policy", ["least-loaded", "cache-aware"])
def test_threads_that_select_at_once_see_each_others_bookings(policy: str) -> None:
    router, _ = make(tuple(f"w{n}" for n in range(10)), policy=policy)
    held: list[Decision[str]] = []

    def select(number: int) -> None:
        for n in range(125):
            first = (125 * number + n) * 1000
            held.append(router.select_worker(tokens=range(first, first + 64)))

    run(select)
    assert set(router.loads().values()) == {100}, "two that see the same load would pick the same worker"
    for decision in held:
        decision.on_complete()


def test_eight_threads_leave_nothing_behind() -> None:
    router, _ = make(("a", "b", "c"), policy="cache-aware")

    def work(number: int) -> None:
        draw, mine = random.Random(number), list[Any]()
        steps: list[Callable[[], object]] = [
            lambda: mine.append(router.select_worker(tokens=range(draw.randrange(64)))),
            lambda: mine.append(router.select_pair(tokens=PROMPT)),
            lambda: mine.append(mine.pop(0).retry()),
            lambda: mine.pop(draw.randrange(len(mine))).on_complete(),
            lambda: router.remove_worker(draw.choice("abc"), drain=draw.random() < 0.5),
            lambda: router.add_worker(draw.choice("abc")),
            lambda: router.set_ready(draw.choice("abc"), draw.random() < 0.8),
            lambda: router.load_sink.update_load(draw.choice("abc"), running=draw.randrange(9), waiting=0),
        ]
        for _ in range(1_000):
            with contextlib.suppress(cachelb.NoWorkerAvailable, cachelb.UnknownWorkerError, IndexError, ValueError):
                draw.choice(steps)()
        for decision in mine:
            decision.cancel()

    run(work)
    gc.collect()
    router.validate()
    assert set(router.loads()) == set(router.keys())
    assert set(router.loads().values()) <= {0}
    assert router.stats().open_requests == 0
