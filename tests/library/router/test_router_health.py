"""Workers that show no sign of life: failures that count against them, requests that they still get, recovery."""

from __future__ import annotations

import gc
import logging
from typing import Any

import pytest

import cachelb
from cachelb import Health, Pairs, Router
from cachelb.testing import ManualClock
from cachelb_fakes.events import encode_batch, stored

LONG = 120_000
"""Tokens of a prompt that takes a minute on a slow GPU."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0)


def make(clock: ManualClock, *workers: str, **options: Any) -> Router[str]:
    return Router(workers or ("a", "b", "c"), seed=1, clock=clock, **options)


def states(router: Router[str]) -> dict[str, str]:
    return {row.key: row.state for row in router.stats().workers}


def give_up(router: Router[str], clock: ManualClock, key: str, wait_s: float = 8.0, **request: Any) -> None:
    decision = router.select_worker(among=[key], **request, by_load=True)
    clock.advance(wait_s)
    decision.cancel()


def answer(router: Router[str], clock: ManualClock, key: str, took_s: float = 0.1, **request: Any) -> None:
    with router.select_worker(among=[key], **request, by_load=True) as decision:
        clock.advance(took_s)
        decision.on_first_token()


# --- requests that are given up ---


def test_two_requests_given_up_in_a_row_make_a_worker_unreachable_until_a_token_comes(clock: ManualClock) -> None:
    router = make(clock)
    older = router.select_worker(among=["a"], by_load=True)
    give_up(router, clock, "a")
    assert states(router)["a"] == "ready"
    give_up(router, clock, "a")
    assert states(router) == {"a": "unreachable", "b": "ready", "c": "ready"}
    assert {view.key: view.state for view in router.explain().candidates}["a"] == "unreachable"
    assert {router.select_worker(by_load=True).key for _ in range(20)} == {"b", "c"}
    older.on_tokens(1)
    assert states(router)["a"] == "ready"


def test_a_worker_that_generates_for_others_is_not_silent(clock: ManualClock) -> None:
    router = make(clock)
    stream = router.select_worker(among=["a"], by_load=True)
    stream.on_first_token()
    waiting = [router.select_worker(among=["a"], by_load=True) for _ in range(4)]
    clock.advance(60.0)
    stream.on_tokens(1)
    for decision in waiting:
        decision.cancel()
    assert states(router)["a"] == "ready"


@pytest.mark.parametrize("how", ["cancel", "timeout", "with", "retry", "dropped"])
def test_however_a_host_gives_up_it_counts(clock: ManualClock, how: str) -> None:
    router = make(clock)
    answer(router, clock, "b")
    for _ in range(2):
        decision: Any = router.select_worker(among=["a"], by_load=True)
        clock.advance(8.0)
        router.select_worker(dry_run=True, by_load=True)  # the time that a dropped decision is ended at
        match how:
            case "cancel":
                decision.cancel()
            case "timeout":
                decision.on_error(TimeoutError())
            case "with":
                with pytest.raises(KeyboardInterrupt), decision:
                    raise KeyboardInterrupt
            case "retry":
                with pytest.raises(cachelb.NoWorkerAvailable):
                    decision.retry()
            case _:
                del decision
                gc.collect()
    assert states(router)["a"] == "unreachable"


def test_decisions_dropped_by_an_owner_that_reports_nothing_show_nothing(clock: ManualClock) -> None:
    router = make(clock)
    for _ in range(9):
        decision = router.select_worker(among=["a"], by_load=True)
        clock.advance(8.0)
        router.select_worker(dry_run=True, by_load=True)
        del decision
        gc.collect()
    assert states(router)["a"] == "ready"


@pytest.mark.parametrize("status", [None, 400, 404, 429, 499])
def test_clients_that_leave_early_and_their_faults_show_nothing(clock: ManualClock, status: int | None) -> None:
    router = make(clock)
    give_up(router, clock, "a")
    for _ in range(9):
        decision = router.select_worker(among=["a"], by_load=True)
        clock.advance(1.9)
        if status is None:
            decision.cancel()
        else:
            decision.on_error(status)
    clock.advance(60.0)
    assert states(router)["a"] == "ready"
    give_up(router, clock, "a")
    assert states(router)["a"] == "unreachable", "they are no sign of life either"


def test_a_status_of_clients_that_left_is_no_sign_of_life_of_a_worker_that_is_tried_again(clock: ManualClock) -> None:
    router = make(clock, health=Health(breaker_failures=1))
    router.select_worker(among=["a"], by_load=True).on_error(500)
    clock.advance(5.0)
    assert router.select_worker(among=["a"], by_load=True).on_error(499) == "cancelled"
    assert states(router)["a"] == "failing"


# --- how long a first token may take ---


def test_a_slow_prefill_of_which_nothing_is_known_is_no_hang(clock: ManualClock) -> None:
    router = make(clock)
    for wait_s in (60.0, 200.0):
        give_up(router, clock, "a", wait_s, prompt_tokens=LONG)
    assert states(router)["a"] == "ready"
    for _ in range(2):
        give_up(router, clock, "a", 300.0, prompt_tokens=LONG)
    assert states(router)["a"] == "unreachable"


def test_what_is_learned_of_any_worker_bounds_the_patience(clock: ManualClock) -> None:
    router = make(clock)
    for _ in range(9):
        answer(router, clock, "b", took_s=10.0, prompt_tokens=LONG)
    give_up(router, clock, "a", 30.0, prompt_tokens=LONG)
    give_up(router, clock, "a", 30.0, prompt_tokens=LONG)
    assert states(router)["a"] == "ready"
    give_up(router, clock, "a", 50.0, prompt_tokens=LONG)
    give_up(router, clock, "a", 50.0, prompt_tokens=LONG)
    assert states(router)["a"] == "unreachable"


def test_what_waits_before_a_request_is_waited_for(clock: ManualClock) -> None:
    router = make(clock)
    for _ in range(9):
        answer(router, clock, "a", took_s=1.0, prompt_tokens=10_000)
    queue = [router.select_worker(among=["a"], prompt_tokens=10_000, by_load=True) for _ in range(8)]
    clock.advance(25.0)
    for decision in queue[-2:]:  # seven and eight seconds of prefill
        decision.cancel()
    assert states(router)["a"] == "ready"
    for decision in queue[:2]:
        decision.cancel()
    assert states(router)["a"] == "unreachable"


def test_requests_of_other_routers_are_waited_for_while_reports_are_fresh(clock: ManualClock) -> None:
    def after(report_age_s: float) -> str:
        router = make(clock)
        for _ in range(9):
            answer(router, clock, "a", took_s=1.0, prompt_tokens=10_000)
        for _ in range(2):
            decision = router.select_worker(among=["a"], prompt_tokens=10_000, by_load=True)
            clock.advance(8.0)
            router.load_sink.update_load("a", running=8, waiting=8, age_s=report_age_s)
            decision.cancel()
        return states(router)["a"]

    assert after(0.0) == "ready"
    assert after(2.1) == "unreachable"


def test_answers_that_are_not_streamed_are_waited_for(clock: ManualClock) -> None:
    router = make(clock)
    for _ in range(9):
        decision = router.select_worker(among=["b"], by_load=True)
        clock.advance(30.0)
        decision.on_complete()
    for _ in range(2):
        give_up(router, clock, "a", 50.0)
    assert states(router)["a"] == "ready"
    for _ in range(2):
        give_up(router, clock, "a", 70.0)
    assert states(router)["a"] == "unreachable"


def test_of_a_pair_the_worker_at_work_is_blamed(clock: ManualClock) -> None:
    def after(computed: bool) -> dict[str, str]:
        router: Router[str] = Router(seed=1, clock=clock, pairs=Pairs(uncached_token_threshold=0))
        for key, role in (("p", "prefill"), ("p2", "prefill"), ("d", "decode"), ("d2", "decode")):
            router.add_worker(key, role=role)  # type: ignore[arg-type]
        for _ in range(2):
            pair = router.select_pair(tokens=range(64), among=["p", "d"])
            clock.advance(8.0)
            if computed:
                assert pair.prefill is not None
                pair.prefill.on_complete()
                clock.advance(8.0)
            pair.cancel()
        return {key: state for key, state in states(router).items() if state != "ready"}

    assert after(computed=False) == {"p": "unreachable"}
    assert after(computed=True) == {"d": "unreachable"}


# --- requests meanwhile ---


def test_if_all_are_unreachable_requests_go_as_if_none_were(clock: ManualClock) -> None:
    router = make(clock)
    for key in states(router):
        give_up(router, clock, key, 3.0)
        give_up(router, clock, key, 3.0)
    assert set(states(router).values()) == {"unreachable"}
    assert {router.select_worker(by_load=True).key for _ in range(30)} == {"a", "b", "c"}
    with router.select_worker(among=["b"], by_load=True) as decision:
        decision.on_first_token()
    assert {router.select_worker(by_load=True).key for _ in range(30)} == {"b"}


def test_without_a_breaker_nothing_counts(clock: ManualClock) -> None:
    router = make(clock, health=Health(breaker_failures=0))
    for _ in range(5):
        give_up(router, clock, "a")
        router.load_sink.update_health("a", answered=False)
    assert states(router)["a"] == "ready"


def test_every_change_is_logged_once(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "cachelb.router")
    router = make(clock)
    router.add_worker("r", dp_size=4)
    for _ in range(9):
        give_up(router, clock, "a")
    answer(router, clock, "a")
    for _ in range(9):
        router.load_sink.update_health("r", answered=False)
    router.load_sink.update_health("r", answered=True)
    passed = "requests go to other workers while there are any"
    assert [record.getMessage() for record in caplog.records] == [
        f"worker a is unreachable: two requests in a row were given up without a first token; {passed}",
        "worker a is reachable again",
        f"worker r is unreachable: its metrics page did not answer three times in a row; {passed}",
        "worker r is reachable again",
    ]


# --- prompts that fail everywhere ---


def poison(router: Router[str], key: str, prompt: dict[str, Any]) -> None:
    router.select_worker(among=[key], **prompt, by_load=True).on_error(500)


@pytest.mark.parametrize(
    "prompt",
    [
        {"tokens": range(1000)},
        {"tokens": [1, 2, 3]},
        {"text": "word " * 999},
        {"text": "hi"},
        {"body": b'{"messages":[{"role":"user","content":"hi"}]}', "path": "/v1/chat/completions"},
    ],
    ids=["tokens", "few tokens", "text", "short text", "body"],
)
@pytest.mark.parametrize("policy", ["adaptive", "cache-aware", "round-robin", "least-loaded"])
def test_a_prompt_that_fails_on_several_workers_is_held_against_none(
    clock: ManualClock, policy: str, prompt: dict[str, Any]
) -> None:
    router = make(clock, policy=policy, health=Health(breaker_failures=2))
    for key in "aaabbbcc":
        poison(router, key, prompt)
    assert set(states(router).values()) == {"ready"}


def test_a_prompt_that_another_worker_answers_was_not_the_reason(clock: ManualClock) -> None:
    router = make(clock, health=Health(breaker_failures=2))
    for start in (0, 1000):
        prompt = range(start, start + 500)
        for key in "ab":
            poison(router, key, {"tokens": prompt})
        assert set(states(router).values()) == {"ready"}, start
        answer(router, clock, "c", tokens=prompt)
        if start:
            break
    assert states(router) == {"a": "failing", "b": "failing", "c": "ready"}


def test_a_prompt_that_fails_on_one_worker_alone_is_held_against_it(clock: ManualClock) -> None:
    router = make(clock)
    for _ in range(5):
        poison(router, "a", {"tokens": range(500)})
    assert states(router)["a"] == "failing"


def test_a_prompt_that_no_worker_answers_in_time_is_held_against_none(clock: ManualClock) -> None:
    router = make(clock)
    for key in "abcabcabc":
        give_up(router, clock, key, tokens=range(100))
    assert set(states(router).values()) == {"ready"}


def test_retries_of_different_prompts_find_the_broken_workers(clock: ManualClock) -> None:
    router = make(clock, health=Health(breaker_failures=3))
    for start in range(0, 40_000, 100):
        decision = router.select_worker(tokens=range(start, start + 99))
        for _ in range(2):
            if decision.key == "c":
                break
            decision.on_error(500)
            decision = decision.retry()
        decision.on_first_token()
        decision.on_complete()
    assert states(router) == {"a": "failing", "b": "failing", "c": "ready"}


# --- health checks, and restarts ---


def test_a_restart_drops_what_the_worker_held_and_what_failed(clock: ManualClock) -> None:
    router = make(clock, health=Health(breaker_failures=2))
    answer(router, clock, "a", tokens=range(640))
    assert router.select_worker(tokens=range(640), dry_run=True).matched_tokens > 0
    poison(router, "a", {"tokens": range(5000, 5100)})
    poison(router, "a", {"tokens": range(6000, 6100)})
    give_up(router, clock, "a")
    give_up(router, clock, "a")
    assert states(router)["a"] == "unreachable"
    router.load_sink.update_health("a", answered=True, restarted=True)
    assert states(router)["a"] == "ready"
    assert router.select_worker(tokens=range(640), dry_run=True).matched_tokens == 0


PROMPTS = (range(32), range(100, 132))


def batch(names: list[int], tokens: range, ts: float) -> bytes:
    return encode_batch([stored(names, tokens, block_size=16)], ts=ts)


@pytest.mark.parametrize("is_announced", [True, False])
def test_a_restart_that_events_have_shown_leaves_what_they_announced_since(is_announced: bool) -> None:
    router = Router(["a", "b"], seed=1)
    router.event_sink.apply_events("a", batch([1, 2], range(32), 1.0), seq=7)
    if is_announced:
        router.event_sink.apply_events("a", batch([3, 4], range(100, 132), 9.0), seq=0)
    router.load_sink.update_health("a", answered=True, restarted=True)
    held = [router.select_worker(tokens=[*tokens, 1], dry_run=True).matched_tokens for tokens in PROMPTS]
    assert held == ([0, 32] if is_announced else [0, 0])


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"answered": 1}, "answered"),
        ({"answered": True, "took_s": -1.0}, "took_s"),
        ({"answered": True, "took_s": float("nan")}, "took_s"),
        ({"answered": True, "restarted": "yes"}, "restarted"),
    ],
)
def test_wrong_outcomes_of_checks_are_refused(clock: ManualClock, wrong: dict[str, Any], name: str) -> None:
    router = make(clock)
    with pytest.raises((TypeError, ValueError), match=name):
        router.load_sink.update_health("a", **wrong)
    with pytest.raises(cachelb.UnknownWorkerError):
        router.load_sink.update_health("z", answered=True)
