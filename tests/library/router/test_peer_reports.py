"""Why the picked worker of a preview copies nothing, the terms of one that copies, and counts of copies that came."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.library.events.test_router_events import batch
from tests.routers import flat_router

from cachelb import Router
from cachelb.explanation import CandidateView
from cachelb.metrics.families import families
from cachelb.peers import KvSource
from cachelb_fakes.events import stored

LONG = list(range(16 * 12 + 1))
ASK: dict[str, Any] = {"tokens": LONG, "among": ["a"], "dry_run": True}


def peers(held: int = 12, medium: str = "cpu", *, measured: bool = True, **terms: Any) -> Router[str]:
    """Workers "a" and "b", of which the second one holds blocks, in a peer group; to compute a token takes 10 ms."""
    now = 0.0
    router = flat_router(["a", "b"], {}, seed=1, clock=lambda: now, block_size=16)
    for seq, key in enumerate("ab" * measured):
        first = router.select_worker(tokens=range(5000 + 1000 * seq, 5100 + 1000 * seq), among=[key])
        now += 1.0
        first.on_first_token()
        first.on_complete()
    for key, blocks in (("a", 0), ("b", held)):
        events = [stored(range(1, blocks + 1), LONG[: 16 * blocks], medium=medium)] if blocks else []
        router.event_sink.apply_events(key, batch(*events), seq=0)
    router.peer_groups.add("rack", **{"load_ms_per_token": 0.1, "port": 7777, **terms})
    return router


def expected(router: Router[str]) -> object:
    """Books a prompt at "b" whose blocks no event has announced, until the decision is dropped."""
    return router.select_worker(tokens=range(9000, 9193), among=["b"])


REASONS: list[tuple[str | None, dict[str, Any], dict[str, Any], Callable[[Router[str]], object] | None]] = [
    (None, {}, {}, None),
    ("no-peer-group", {}, {}, lambda router: router.peer_groups.remove("rack")),
    ("no-peer-group", {"workers": ["b"]}, {}, None),
    ("no-tokens", {}, {"tokens": None, "text": "a" * 400}, None),
    ("speed-unknown", {"measured": False}, {}, None),
    ("link-unknown", {"load_ms_per_token": None}, {}, None),
    ("no-longer-prefix", {"held": 0}, {}, None),
    ("no-longer-prefix", {"sources": ["a"]}, {}, None),
    ("not-servable", {"medium": "gpu"}, {}, None),
    ("doubtful", {"media": ["gpu", "cpu"]}, {"tokens": range(9000, 9193)}, expected),
    ("doubtful", {}, {}, lambda router: router.event_sink.apply_events("b", batch(), seq=5)),
    ("source-failing", {}, {}, lambda router: router.set_ready("b", ready=False)),
    ("slower", {"load_ms_per_token": 10.1}, {}, None),
    ("slower", {"startup_ms": 1e6}, {}, None),
]


@pytest.mark.parametrize(("reason", "terms", "asked", "change"), REASONS)
def test_a_preview_names_the_reason(
    reason: str | None,
    terms: dict[str, Any],
    asked: dict[str, Any],
    change: Callable[[Router[str]], object] | None,
) -> None:
    router = peers(**terms)
    _kept = None if change is None else change(router)
    decision = router.select_worker(**{**ASK, **asked})
    (view,) = [view for view in decision.explain().candidates if view.picked]
    assert (view.no_source, decision.kv_source is None) == (reason, reason is not None)
    assert (view.kv_source, view.pulled_tokens) == ((None, 0) if reason else ("b", 192))


def picked(decision: Any) -> CandidateView:
    views: list[CandidateView] = [view for view in decision.explain().candidates if view.picked]
    return views[0]


def terms_of(source: KvSource | None) -> tuple[str | None, int, float]:
    return (None, 0, 0.0) if source is None else (source.key, source.end_tokens - source.start_tokens, source.load_ms)


@given(
    held=st.integers(0, 12),
    medium=st.sampled_from(["cpu", "gpu"]),
    slope=st.one_of(st.none(), st.floats(0, 20)),
    startup=st.floats(0, 2000),
    queued=st.integers(0, 3),
)
def test_a_source_has_no_reason_and_its_terms_are_those_of_the_decision(
    held: int, medium: str, slope: float | None, startup: float, queued: int
) -> None:
    router = peers(held, medium, load_ms_per_token=slope, startup_ms=startup)
    for n in range(queued):
        router.select_worker(tokens=range(20_000 * (n + 1), 20_000 * (n + 1) + 50), among=["a"])
    preview, booked = (router.select_worker(**{**ASK, "dry_run": dry}) for dry in (True, False))
    assert terms_of(booked.kv_source) == terms_of(preview.kv_source)
    for decision in (preview, booked):
        view = picked(decision)
        assert (view.kv_source, view.pulled_tokens, view.pull_ms) == terms_of(decision.kv_source)
    assert (picked(preview).no_source is None) == (preview.kv_source is not None)
    # As for scores, recorded decisions have no reasons.
    assert picked(booked).no_source is None


@pytest.mark.parametrize(
    ("found", "outcome", "tokens"),
    [
        (0, "missed", 0),
        (15, "missed", 15),
        (16, "short", 16),
        (175, "short", 175),
        (176, "landed", 176),
        (193, "landed", 192),
        (None, None, 0),
    ],
)
def test_copies_are_counted_by_the_cached_tokens_of_their_answers(
    found: int | None, outcome: str | None, tokens: int
) -> None:
    router = peers()
    decision = router.select_worker(tokens=LONG, among=["a"])
    assert decision.kv_source is not None
    decision.on_first_token()
    # New terms keep the counts.
    router.peer_groups.add("rack", load_ms_per_token=0.2, port=7777)
    decision.on_complete(cached_tokens=found)
    router.select_worker(tokens=LONG, among=["a"]).on_complete(cached_tokens=192)
    router.peer_groups.add("rack", load_ms_per_token=0.1, port=7777)
    named = {family.name: family for family in families(router.stats())}
    outcomes = {("rack", each): int(each == outcome) for each in ("landed", "short", "missed")}
    assert (named["pulls"].labels, dict(named["pulls"].rows)) == (("group", "outcome"), outcomes)
    assert (named["pulled_tokens"].kind, named["pulled_tokens"].rows) == ("counter", [(("rack",), tokens)])
    router.peer_groups.remove("rack")
    assert (router.stats().pulls, router.stats().pulled_tokens) == ({}, {})
