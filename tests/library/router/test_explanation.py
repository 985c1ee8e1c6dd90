"""Explanations: one line, a table, a dictionary; of decisions, dry runs and halves of a pair."""

from __future__ import annotations

import json

import pytest

from cachelb import Pairs, Router
from cachelb.explanation import CandidateView, Explanation
from cachelb.policies import CacheAware

VIEWS = (
    CandidateView("gpu0", "available", 62, 1, 64, matched_tokens=992.0, score=928.5, picked=True),
    CandidateView("gpu1", "not ready", 0, 0, 0),
    CandidateView("gpu2", "available", 0, 0, 0, decode_blocks=7, weight=2.0),
)
TOLD = Explanation("gpu0", "cache-aware", "prefix", 1000, 992, 992, higher_is_better=True, candidates=VIEWS)


def test_the_line_says_who_why_and_of_how_many() -> None:
    matched = "992 of 1000 prompt tokens matched (best 992)"
    told = f"gpu0: prefix by cache-aware, {matched}, 2 of 3 workers available, score 928.5 (higher is better)"
    assert str(TOLD) == TOLD.line() == told


def test_the_table_has_a_row_per_worker_and_marks_the_pick() -> None:
    assert TOLD.table().splitlines() == [
        "   worker  state      matched  inflight  prefill  decode  weight  score",
        "*  gpu0    available      992         1       64       0       1  928.5",
        "   gpu1    not ready        -         -        -       -       -      -",
        "   gpu2    available        0         0        0       7       2      -",
    ]


def test_the_dictionary_is_json() -> None:
    document = json.loads(json.dumps(TOLD.as_dict(), allow_nan=False))
    assert (document["policy"], document["higher_is_better"], document["forgotten"]) == ("cache-aware", True, False)
    assert [view["state"] for view in document["candidates"]] == ["available", "not ready", "available"]
    assert document["candidates"][0]["score"] == 928.5


def test_a_score_without_bounds_is_still_json() -> None:
    view = CandidateView("a", "available", 0, 0, 0, score=float("inf"), picked=True)
    told = Explanation("a", "mine", "custom", 0, 0, 0, higher_is_better=False, candidates=(view,))
    assert told.as_dict()["candidates"][0]["score"] is None
    assert "score inf" in told.line()
    assert told.table().splitlines()[1].endswith("inf")


def test_a_decision_is_explained_by_the_state_it_saw() -> None:
    router = Router(["a", "b"], seed=1, policy=CacheAware(seed=1))
    router.select_worker(tokens=range(1000)).on_complete()
    holder = router.records.recent()[0].key
    decision = router.select_worker(tokens=range(1000))
    router.select_worker(tokens=range(5000, 6000)).on_complete()
    told = decision.explain()
    assert (told.key, told.policy, told.reason) == (holder, "cache-aware", "prefix")
    assert (told.prompt_tokens, told.best_matched_tokens, told.matched_tokens) == (1000, 992, 992)
    assert told.higher_is_better
    best, other = sorted(told.candidates, key=lambda view: not view.picked)
    assert (best.key, best.matched_tokens, other.picked, other.matched_tokens) == (holder, 992, False, 0)
    assert (best.score or 0) > (other.score or 0)
    decision.on_complete()
    told = Router(["a", "b"], policy="least-loaded").explain()
    assert (told.policy, told.higher_is_better) == ("least-loaded", False)
    assert "lower is better" in told.line()


def test_a_decision_too_long_ago_says_so() -> None:
    router = Router(["a", "b"])
    first = router.select_worker(tokens=range(100))
    for _ in range(300):
        router.select_worker(by_load=True).on_complete()
    told = first.explain()
    assert told.forgotten
    assert told.prompt_tokens == 100
    assert told.line() == told.table()
    assert told.line().endswith("candidates no longer known: only the latest 256 decisions are kept")
    assert told.as_dict()["forgotten"] is True
    first.on_complete()


def test_each_half_of_a_pair_is_explained_by_what_it_saw() -> None:
    router: Router[str] = Router(seed=1, pairs=Pairs(prefill="cache-aware"))
    router.add_worker("p", role="prefill")
    router.add_worker("d", role="decode")
    pair = router.select_pair(tokens=range(100))
    assert pair.prefill is not None
    halves = [half.explain() for half in (pair.prefill, pair.decode)]
    assert [half.policy for half in halves] == ["cache-aware", "least-loaded"]
    seen = [[(view.key, view.state, view.picked) for view in half.candidates] for half in halves]
    assert seen[0] == [("p", "available", True), ("d", "not in the role", False)]
    assert seen[1] == [("p", "not in the role", False), ("d", "available", True)]
    pair.cancel()


def test_previews_take_the_score_of_adaptive_apart() -> None:
    router: Router[str] = Router(seed=1, policy="adaptive")
    for key in ("a", "b"):
        router.add_worker(key, kv_blocks=1000)
    decision = router.select_worker(tokens=range(1600))
    told = router.explain(tokens=range(800))
    for view in told.candidates:
        names = ["waiting_ms", "own_ms", "cache_ms", "queued_ms", "running_ms", "decoding_ms", "memory_ms"]
        assert list(view.terms) == names
        assert view.score == pytest.approx(sum(view.terms.values()), rel=1e-9)
        assert (view.terms["running_ms"] > 0) == (view.terms["waiting_ms"] > 0) == (view.key == decision.key)
        assert view.terms["memory_ms"] > 0
    assert router.select_worker(tokens=range(800), dry_run=True).explain().candidates == told.candidates
    assert json.loads(json.dumps(told.as_dict()))["candidates"][0]["terms"] == told.candidates[0].terms
    # Recorded decisions keep the score alone, and other policies' have no terms.
    assert [view.terms for view in decision.explain().candidates] == [{}, {}]
    assert [view.terms for view in Router(["a"], policy="cache-aware").explain(tokens=range(800)).candidates] == [{}]
    decision.on_complete()
