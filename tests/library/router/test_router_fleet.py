"""The fleet: what readiness, restarts, drains and removals do to index, bookings and candidates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from tests.models.loads import indexed_blocks

import cachelb
from cachelb import Decision, Health, Router
from cachelb.testing import ManualClock
from cachelb.types import WorkerStats

PROMPT = range(64)


def make(*workers: str, **options: Any) -> tuple[Router[str], ManualClock]:
    clock = ManualClock()
    return cachelb.Router(workers, seed=1, clock=clock, **options), clock


def on(router: Router[str], key: str) -> Decision[str]:
    return router.select_worker(tokens=PROMPT, among=[key])


def rows(router: Router[str], key: str) -> list[WorkerStats]:
    return [row for row in router.stats().workers if row.key == key]


class After(NamedTuple):
    """The rest of worker "a", which held four blocks, one open request and the session "s"."""

    blocks: int
    open_request: bool
    candidate: bool
    registered: bool
    session_stays: bool


EVENTS: dict[str, tuple[Callable[[Any], object], After]] = {
    "flap": (
        lambda router: router.set_ready("a", False),
        After(4, open_request=True, candidate=False, registered=True, session_stays=False),
    ),
    "flap and return": (
        lambda router: (router.set_ready("a", False), router.set_ready("a", True)),
        After(4, open_request=True, candidate=True, registered=True, session_stays=True),
    ),
    "restart": (
        lambda router: router.load_sink.reset_cache("a"),
        After(0, open_request=True, candidate=True, registered=True, session_stays=True),
    ),
    "drain": (
        lambda router: router.remove_worker("a", drain=True),
        After(4, open_request=True, candidate=False, registered=False, session_stays=False),
    ),
    "remove": (
        lambda router: router.remove_worker("a"),
        After(0, open_request=False, candidate=False, registered=False, session_stays=False),
    ),
    "remove and return": (
        lambda router: (router.remove_worker("a"), router.add_worker("a")),
        After(0, open_request=False, candidate=True, registered=True, session_stays=False),
    ),
    "drain and return": (
        lambda router: (router.set_ready("a", False), router.remove_worker("a", drain=True), router.add_worker("a")),
        After(4, open_request=True, candidate=True, registered=True, session_stays=True),
    ),
}


@pytest.mark.parametrize(("event", "after"), EVENTS.values(), ids=EVENTS)
def test_events_of_the_fleet(event: Callable[[Router[str]], object], after: After) -> None:
    router, _ = make("a", "b", policy="cache-aware")
    decision = on(router, "a")
    decision.on_first_token()
    event(router)
    assert router.stats().index_blocks == after.blocks
    assert router.loads().get("a", 0) == after.open_request
    assert ("a" in router.keys()) is after.registered  # noqa: SIM118 - a method, not a dict
    picks = [router.select_worker(tokens=range(n * 1000, n * 1000 + 64)) for n in range(1, 9)]
    assert ("a" in {pick.key for pick in picks}) is after.candidate
    for pick in [*picks, decision]:
        pick.on_complete()
    assert set(router.loads().values()) == {0}
    router.validate()

    router, _ = make("a", "b", policy="session")
    bound = router.select_worker(session="s", among=["a"], by_load=True)
    bound.on_complete()
    event(router)
    again = [router.select_worker(session="s", by_load=True) for _ in range(4)]
    if after.session_stays:
        assert {pick.key for pick in again} == {"a"}
    elif not after.candidate:
        assert {pick.key for pick in again} == {"b"}


def test_a_flap_keeps_the_prefixes_and_a_restart_begins_the_slow_start_again() -> None:
    router, clock = make(policy="cache-aware")
    router.add_worker("a", slow_start_s=60)
    router.add_worker("b")
    clock.advance(60)
    on(router, "a").on_complete()
    router.set_ready("a", False)
    assert router.select_worker(tokens=PROMPT).matched_tokens == 0
    router.set_ready("a", True)
    again = on(router, "a")
    assert again.matched_tokens == 48
    weight = {row.key: row.weight for row in router.explain(tokens=PROMPT).candidates}
    assert weight == {"a": 1.0, "b": 1.0}
    router.load_sink.reset_cache("a")
    weight = {row.key: row.weight for row in router.explain(tokens=PROMPT).candidates}
    assert weight == {"a": 0.25, "b": 1.0}


def test_slow_start_gives_a_new_worker_a_quarter_and_then_more() -> None:
    router, clock = make("old", policy="least-loaded")
    router.add_worker("new", slow_start_s=60)
    shares = []
    for _ in range(3):
        decisions = [router.select_worker(by_load=True) for _ in range(100)]
        shares.append(sum(decision.key == "new" for decision in decisions))
        for decision in decisions:
            decision.cancel()
        clock.advance(30)
    assert shares == [20, pytest.approx(38, abs=1), 50]


def test_a_draining_worker_can_be_removed_at_once() -> None:
    router, _ = make("b")
    router.add_worker("a", dp_size=2)
    decisions = [on(router, "a") for _ in range(4)]
    router.remove_worker("a", drain=True)
    assert router.remove_worker("a", drain=True) is False
    assert router.remove_worker("a") is True
    assert router.remove_worker("a") is False
    assert router.loads() == {"b": 0}
    for decision in decisions:
        decision.on_complete()
    router.validate()


def test_a_draining_rank_keeps_its_name_in_stats_and_records() -> None:
    router, _ = make("b", "a#x", policy="least-loaded", shadow=["random"])
    router.add_worker("a", dp_size=2)
    decisions = [on(router, key) for key in ("a", "a", "a#x", "b")]
    named = {(row.key, row.dp_rank, row.inflight) for row in router.stats().workers}
    assert named == {("a", 0, 1), ("a", 1, 1), ("a#x", None, 1), ("b", None, 1)}
    for key in ("a", "a#x"):
        router.remove_worker(key, drain=True)
    assert {(row.key, row.dp_rank, row.inflight) for row in router.stats().workers} == named
    for decision in decisions:
        decision.on_complete()
    assert {(row.key, row.dp_rank) for row in router.stats().workers} == {("b", None)}
    recent = router.records.recent()
    assert {(record.key, record.dp_rank) for record in recent} == {(key, rank) for key, rank, _ in named}
    assert {shadow.key for record in recent for shadow in record.shadows} <= {"a", "a#x", "b"}


def test_only_the_ranks_of_a_draining_worker_are_removed_with_it() -> None:
    router, _ = make("b", "a#x")
    router.add_worker("a", dp_size=2)
    decisions = [on(router, key) for key in ("a", "a#x")]
    for decision in decisions:
        router.remove_worker(decision.worker, drain=True)
    assert router.remove_worker("a")
    assert [row.key for row in router.stats().workers] == ["b", "a#x"]


def test_nobody_ready_names_every_worker_and_why() -> None:
    router, _ = make("off", "tried")
    router.add_worker("half", role="prefill")
    router.add_worker("other", models=["m"])
    router.set_ready("off", False)
    with pytest.raises(cachelb.NoWorkerAvailable) as info:
        router.select_worker(exclude=["tried"], by_load=True)
    assert info.value.reasons == {
        "off": "not ready",
        "tried": "excluded",
        "half": "not in the role",
        "other": "not serving the model",
    }
    assert router.stats().no_worker == 1


def test_ranks_have_loads_and_prefixes_of_their_own_and_share_readiness() -> None:
    router, _ = make(policy="cache-aware")
    router.add_worker("a", dp_size=4)
    decisions = [router.select_worker(tokens=range(n * 1000, n * 1000 + 64)) for n in range(8)]
    ranks = [decision.dp_rank for decision in decisions]
    assert sorted(rank for rank in ranks if rank is not None) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [row.inflight for row in rows(router, "a")] == [2] * 4
    again = router.select_worker(tokens=range(3000, 3064))
    assert (again.dp_rank, again.matched_tokens) == (ranks[3], 48)
    assert again.headers["x-data-parallel-rank"] == str(ranks[3])
    router.set_ready("a", False)
    with pytest.raises(cachelb.NoWorkerAvailable) as info:
        router.select_worker(by_load=True)
    assert set(info.value.reasons.values()) == {"not ready"}


def test_changing_the_number_of_ranks_voids_those_that_are_gone() -> None:
    router, _ = make()
    router.add_worker("a", dp_size=2)
    decisions = [router.select_worker(tokens=PROMPT) for _ in range(4)]
    router.add_worker("a", dp_size=1)
    assert router.loads() == {"a": 0}
    assert router.select_worker(by_load=True).dp_rank is None
    for decision in decisions:
        decision.on_complete()
    assert router.loads() == {"a": 0}
    router.validate()


def test_two_workers_never_share_the_name_of_a_rank() -> None:
    router, _ = make("a#1")
    with pytest.raises(ValueError, match='rank of the same name as worker "a#1"'):
        router.add_worker("a", dp_size=2)
    assert router.keys() == ["a#1"]
    assert router.loads() == {"a#1": 0}


def test_models_have_indexes_of_their_own_and_only_their_workers() -> None:
    router, _ = make("any", policy="cache-aware")
    router.add_worker("m1", models=["m"])
    for model in ("m", None):
        router.select_worker(tokens=PROMPT, model=model, among=["any"]).on_complete()
    assert indexed_blocks(router, "any") == 8
    assert router.select_worker(tokens=PROMPT, model="m", among=["any"]).matched_tokens == 48
    with pytest.raises(cachelb.NoWorkerAvailable):
        router.select_worker(tokens=PROMPT, among=["m1"])
    router.add_worker("any", models=["m"])
    assert indexed_blocks(router, "any") == 4, "it left the other model's index"
    router.validate()


def test_a_worker_over_the_veto_is_passed_over_unless_all_are_or_the_report_is_old() -> None:
    router, clock = make("a", "b", policy="least-loaded", health=Health(veto_kv_usage=0.8, veto_waiting=8))
    router.load_sink.update_load("a", kv_usage=0.8)
    assert {router.select_worker(by_load=True).key for _ in range(10)} == {"b"}
    router.load_sink.update_load("b", waiting=8)
    assert {router.select_worker(by_load=True).key for _ in range(30)} == {"a", "b"}
    router.load_sink.update_load("b", waiting=7)
    assert {router.select_worker(by_load=True).key for _ in range(10)} == {"b"}
    clock.advance(2.1)
    assert {router.select_worker(by_load=True).key for _ in range(50)} == {"a", "b"}


def test_sync_registers_removes_keeps_and_replaces() -> None:
    router, _ = make("a", "b", policy="cache-aware")
    on(router, "a").on_complete()
    running = on(router, "b")
    router.sync_workers(["c", "a"])
    assert set(router.keys()) == {"a", "c"}
    assert indexed_blocks(router, "a") == 4
    running.on_complete()
    with pytest.raises(ValueError, match="'a' occurs twice"):
        router.sync_workers(["a", "d", "a"])
    assert set(router.keys()) == {"a", "c"}


@pytest.mark.parametrize(
    "call",
    [
        lambda r: r.set_ready("x", True),
        lambda r: r.load_sink.reset_cache("x"),
        lambda r: r.load_sink.update_load("x", running=1),
        lambda r: r.load_sink.learn_worker("x", kv_blocks=5),
    ],
    ids=["set_ready", "reset_cache", "load", "facts"],
)
def test_an_unknown_worker_is_named(call: Callable[[Router[str]], None]) -> None:
    with pytest.raises(cachelb.UnknownWorkerError, match='"x" is not registered'):
        call(make("a")[0])
