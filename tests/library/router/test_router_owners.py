"""Requests that end without a first token take back what only they put into the index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cachelb import Decision, Pairs, Router
from cachelb.policies import CacheAware, Session

PROMPT = list(range(4096))
POLICIES: dict[str, Callable[[], Any]] = {
    "cache-aware": CacheAware,
    "cache-aware-radix": lambda: CacheAware(index="radix"),
    "kv-aware": lambda: "kv-aware",
    "overlap-cost": lambda: "overlap-cost",
    "prefill-times-batch": lambda: "prefill-times-batch",
    "learned": lambda: "learned",
    "prefix-affinity": lambda: "prefix-affinity",
    "session-over-prefix-affinity": lambda: Session(base="prefix-affinity"),
    "boundary-learning": lambda: "boundary-learning",
}
ENDS: dict[str, Callable[[Decision[str]], object]] = {
    "failed": lambda decision: decision.on_error(ConnectionError()),
    "cancelled": lambda decision: decision.cancel(),
}


def is_known(router: Router[str]) -> bool:
    """Whether the prompt is credited to any worker: in the index, or by the rule itself."""
    again = router.select_worker(tokens=PROMPT)
    again.cancel()
    return again.matched_tokens > 0 or again.reason == "prefix" or router.stats().index_blocks > 0


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("requests", [1, 2, 3, 100])
def test_requests_that_all_end_without_a_first_token_leave_nothing(
    policy: Callable[[], Any], end: Callable[[Decision[str]], object], requests: int
) -> None:
    router: Router[str] = Router(["a"], policy=policy(), seed=1)
    decisions = [router.select_worker(tokens=PROMPT) for _ in range(requests)]
    for decision in decisions:
        end(decision)
    assert not is_known(router)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_one_answer_keeps_the_prefix_for_all(policy: Callable[[], Any]) -> None:
    router: Router[str] = Router(["a"], policy=policy(), seed=1)
    first, second, third = (router.select_worker(tokens=PROMPT) for _ in range(3))
    first.cancel()
    second.on_first_token()
    third.on_error(ConnectionError())
    assert is_known(router)
    second.on_complete()
    assert is_known(router)


def test_a_pair_and_a_retry_leave_nothing() -> None:
    router: Router[str] = Router(seed=1, pairs=Pairs(prefill="cache-aware", decode="cache-aware"))
    for n in range(2):
        router.add_worker(f"p{n}", role="prefill")
        router.add_worker(f"d{n}", role="decode")
    for _ in range(2):
        pairs = [router.select_pair(tokens=PROMPT) for _ in range(3)]
        for pair in pairs:
            pair.cancel()
        assert router.stats().index_blocks == 0
    plain: Router[str] = Router(["a", "b", "c"], policy="cache-aware", seed=1)
    first = [plain.select_worker(tokens=PROMPT) for _ in range(3)]
    second = [decision.retry() for decision in first]
    for decision in second:
        decision.cancel()
    assert plain.stats().index_blocks == 0
