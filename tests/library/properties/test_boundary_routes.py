"""Boundary learning against a model that keeps every prefix as it is."""

from __future__ import annotations

import itertools
from array import array
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.models.boundary_routes import BLOCK, SlowRoutes

from cachelb import Decision
from cachelb.policies import BoundaryLearning
from cachelb.testing.oracle import ManualClock

WORKERS = ["w0", "w1", "w2"]

# Few words, so that conversations share their beginnings and part within blocks.
words = st.sampled_from([(1,), (2,), (1, 1, 1, 1), (2, 2, 2, 2, 2), (1, 2, 1, 2, 1, 2, 1, 2)])
prompts = st.lists(words, max_size=6)
steps = st.one_of(
    st.tuples(st.just("ask"), prompts, st.booleans(), st.sampled_from(["complete", "token", "fail", "keep"])),
    st.tuples(st.just("wait"), st.integers(1, 8)),
    st.tuples(st.just("remove"), st.sampled_from(WORKERS)),
)


def ask(policy: BoundaryLearning, model: SlowRoutes, step: Any, now: float) -> Decision[str] | None:
    """Put a request to both; returns it if it stays open without an answer."""
    _, messages, told, fate = step
    tokens = tuple(itertools.chain(*messages))
    ends = list(itertools.accumulate(map(len, messages))) if told else []
    holders, length = model.holders(tokens, set(WORKERS), now)
    decision = policy.select_worker(WORKERS, tokens=array("I", tokens), boundaries=ends)
    if holders:
        assert (decision.worker in holders, decision.reason) == (True, "prefix")
        model.match(tokens, length)
    else:
        assert decision.reason in {"hash", "hash-bounded", "short-prompt"}
    if fate == "keep":
        return decision
    match fate:
        case "complete":
            decision.on_complete()
        case "token":
            decision.on_first_token()
        case _:
            decision.on_error(503)
    if fate in {"complete", "token"}:
        model.learn(model.keys(tokens, ends), decision.worker, now)
    decision.cancel()
    return None


@given(
    plan=st.lists(steps, max_size=40),
    max_routes=st.integers(1, 8),
    multi_depth=st.booleans(),
)
def test_routes_are_those_of_the_slow_model(plan: list[Any], max_routes: int, multi_depth: bool) -> None:
    options: dict[str, Any] = {"max_routes": max_routes, "multi_depth": multi_depth, "prefix_token_length": 8}
    clock = ManualClock(100.0)
    policy = BoundaryLearning(
        **options,
        ttl_s=10,
        block_size=BLOCK,
        min_prefix_boundary_tokens=0,
        load_imbalance_factor=None,
        clock=clock,
    )
    model = SlowRoutes(**options, ttl_s=10)
    unanswered: list[Decision[str] | None] = []
    for step in plan:
        match step[0]:
            case "wait":
                clock.advance(step[1])
            case "remove":
                policy.remove_worker(step[1])
                model.forget(step[1])
            case _:
                unanswered.append(ask(policy, model, step, clock()))
        policy.validate()
        assert policy.stats()["routes"] == len(model.routes)
    for decision in filter(None, unanswered):
        decision.cancel()
    assert policy.stats()["routes"] == len(model.routes), "what was cancelled is not learned"
