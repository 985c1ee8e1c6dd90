"""Types that checkers must infer of a decision's life, and refuse; nothing runs this file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_type

from cachelb import Decision, policies
from cachelb.explanation import CandidateView
from cachelb.policies import CacheAware
from cachelb.types import Outcome


def life(decision: Decision[dict[str, Any]]) -> None:
    assert_type(decision.retry(), Decision[dict[str, Any]])
    assert_type(decision.on_error(503), Outcome)
    assert_type(decision.explain().candidates, tuple[CandidateView, ...])
    assert_type(decision.headers, Mapping[str, str])
    with decision as same:
        assert_type(same, Decision[dict[str, Any]])


def made_by_name() -> None:
    assert_type(policies.make("random"), Any)


def refused(policy: CacheAware) -> None:
    CacheAware(matcher="quick")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    CacheAware(16)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    policy.select_worker(["a"], tokens=1.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
