"""Life of a decision: what it books, and that it releases it exactly once."""

from __future__ import annotations

import gc
import weakref

import pytest

from cachelb import policies
from cachelb.policies import CacheAware, LeastLoaded

WORKERS = ["a", "b", "c"]


def total(policy: LeastLoaded | CacheAware) -> int:
    return sum(policy.loads().values())


def test_a_dry_run_has_nothing_to_release() -> None:
    policy = LeastLoaded(seed=1)
    decision = policy.select_worker(WORKERS, dry_run=True, by_load=True)
    decision.on_first_token()
    decision.on_complete()
    del decision
    gc.collect()
    assert (policy.abandoned, policy.stats()["selected"], policy.loads()) == (0, 0, {})


@pytest.mark.parametrize(
    ("call", "value", "kind", "message"),
    [("on_error", value, ValueError, "on_error takes") for value in (200, 399, 1000, -1)]
    + [("on_error", value, TypeError, "on_error takes") for value in (True, "500")]
    + [("on_tokens", value, kind, None) for value, kind in ((-1, ValueError), (1.5, TypeError), ("1", TypeError))],
)
def test_what_a_report_cannot_take_is_refused_and_keeps_the_booking(
    call: str, value: object, kind: type[Exception], message: str | None
) -> None:
    policy = LeastLoaded(seed=1)
    decision = policy.select_worker(WORKERS, by_load=True)
    with pytest.raises(kind, match=message):
        getattr(decision, call)(value)
    assert total(policy) == 1


@pytest.mark.parametrize("value", [-1, 1.5, "1", True, 2**63])
def test_a_count_of_an_engine_that_is_none_is_left_out(value: object) -> None:
    policy = LeastLoaded(seed=1)
    decision = policy.select_worker(WORKERS, by_load=True)
    decision.on_complete(cached_tokens=value)  # type: ignore[arg-type]
    assert (total(policy), decision.cached_tokens) == (0, None)


@pytest.mark.parametrize(("load", "picks"), [("tokens", "baa"), ("blocks", "aba"), ("inflight", "bba")])
def test_tokens_and_blocks_follow_the_life_of_a_request(load: str, picks: str) -> None:
    policy = policies.make("least-loaded", load=load, seed=1)
    decision = policy.select_worker(["a"], prompt_tokens=160, by_load=True)
    # From here on "a" was picked longer ago, so it wins where the loads are equal.
    policy.select_worker(["b"], by_load=True).on_complete()
    seen = []
    for step in (decision.on_first_token, decision.on_complete, decision.cancel):
        seen.append(policy.select_worker(["a", "b"], dry_run=True, by_load=True).key)
        step()
    assert "".join(seen) == picks


def test_headers_carry_the_key_and_nothing_a_header_must_not() -> None:
    policy = LeastLoaded(seed=1)
    decision = policy.select_worker(["http://gpu0:8000"], by_load=True)
    assert decision.headers["x-cachelb-worker"] == "http://gpu0:8000"
    assert decision.headers["x-cachelb-decision"] == decision.id
    with pytest.raises(TypeError):
        decision.headers["x"] = "y"  # type: ignore[index]
    hostile = policy.select_worker(["a\r\nset-cookie: x"], by_load=True)
    assert hostile.headers["x-cachelb-worker"] == "a%0D%0Aset-cookie:%20x"


@pytest.mark.parametrize("name", ["cache-aware", "session"])
def test_repr_shows_no_prompt_salt_or_session(name: str) -> None:
    policy = policies.make(name, seed=1)
    decision = policy.select_worker(
        WORKERS, tokens=[424242] * 32, session="secret-session", cache_salt="secret-salt", lora="secret-lora"
    )
    shown = (repr(decision), str(decision), repr(decision.explain()), str(dict(decision.headers)), repr(policy))
    for text in (*shown, repr(policy.stats())):
        assert "secret" not in text
        assert "424242" not in text


def test_explain_shows_what_the_rule_saw() -> None:
    policy = CacheAware(seed=1)
    first = policy.select_worker(["a", "b"], tokens=range(64))
    policy.set_ready("c", False)
    explanation = policy.select_worker(["a", "b", "c"], tokens=range(80)).explain()
    views = {view.key: view for view in explanation.candidates}
    assert (explanation.key, explanation.reason, explanation.matched_tokens) == (first.key, "prefix", 64)
    assert [view.key for view in explanation.candidates] == ["a", "b", "c"]
    assert (views[first.key].overlap_blocks, views[first.key].inflight) == (4, 1)
    assert (views[first.key].speculative_blocks, views[first.key].confirmed_blocks) == ({"gpu": 4}, {})
    assert views["c"].state == "not ready"


def test_a_cycle_through_the_worker_is_collected() -> None:
    class Pod:
        def __init__(self) -> None:
            self.url = "a"
            self.last: object = None

    policy = LeastLoaded(seed=1)
    pod = Pod()
    pod.last = policy.select_worker([pod], by_load=True)
    gone = weakref.ref(pod)
    policy.select_worker(["other"], by_load=True).on_complete()
    del pod
    gc.collect()
    assert gone() is None
    assert policy.abandoned == 1
