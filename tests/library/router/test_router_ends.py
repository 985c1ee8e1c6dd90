"""Retries of a request, and the error once it was tried everywhere."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable
from typing import Any

import pytest
from tests.routers import flat_router

import cachelb
from cachelb import Health, Pairs
from cachelb.policies import LeastLoaded
from cachelb.testing import ManualClock

PROMPT = range(256)
OTHER = range(1_000, 1_256)
STAGES = ("booked", "first token", "tokens")


def make(workers: tuple[str, ...] = ("a", "b", "c"), policy: Any = "least-loaded", **options: Any) -> Any:
    return flat_router(workers, options, seed=1, hash_seed=1, clock=ManualClock(), policy=policy)


def counts(router: Any) -> dict[str, Any]:
    """Every counter but how long selections took, with one name for the two ends."""
    stats = dataclasses.asdict(router.stats())
    del stats["select_seconds"], stats["memory_bytes"]
    given_up = stats["endings"].pop("cancelled", 0) + stats["endings"].pop("abandoned", 0)
    return {**stats, "given up": given_up}


# --- retry() after an end ---

ILLEGAL: dict[str, tuple[Callable[[Any], object], str]] = {
    "completed": (lambda decision: decision.on_complete(), "was completed: select a worker for a new request"),
    "cancelled": (lambda decision: decision.cancel(), "was cancelled: select a worker for a new request"),
    "with": (lambda decision: decision.__exit__(None, None, None), "was completed"),
    "completed, then failed": (lambda decision: (decision.on_complete(), decision.on_error(500)), "was completed"),
    "cancelled, then failed": (lambda decision: (decision.cancel(), decision.on_error(500)), "was cancelled"),
}


def single(router: Any) -> Any:
    return router.select_worker(tokens=PROMPT)


def pair(router: Any) -> Any:
    return router.select_pair(tokens=PROMPT)


@pytest.mark.parametrize("select", [single, pair])
@pytest.mark.parametrize("end", ILLEGAL)
def test_retry_after_an_end_raises_and_books_nothing(select: Callable[[Any], Any], end: str) -> None:
    router = make(pairs=Pairs(fallback=True))
    tell, message = ILLEGAL[end]
    decision = select(router)
    tell(decision)
    before = counts(router), router.loads()
    with pytest.raises(ValueError, match=message):
        decision.retry()
    assert (counts(router), router.loads()) == before
    assert before[0]["open_requests"] == 0


@pytest.mark.parametrize("select", [single, pair])
def test_a_second_retry_of_one_decision_raises_and_books_nothing(select: Callable[[Any], Any]) -> None:
    router = make()
    first = select(router)
    second = first.retry()
    before = counts(router), router.loads()
    with pytest.raises(ValueError, match="retried already: call retry"):
        first.retry()
    assert (counts(router), router.loads()) == before
    second.on_complete()
    assert set(router.loads().values()) == {0}


def test_retry_after_an_end_raises_for_a_bare_policy_too() -> None:
    policy = LeastLoaded(seed=1)
    decision = policy.select_worker(["a", "b"], by_load=True)
    decision.on_complete()
    before = policy.stats()
    with pytest.raises(ValueError, match="was completed"):
        decision.retry()
    assert policy.stats() == before
    assert sum(policy.loads().values()) == 0


def test_retry_may_be_called_again_when_it_found_nobody() -> None:
    router = make(("a", "b"))
    router.set_ready("b", False)
    failed = router.select_worker(by_load=True)
    for _ in range(2):
        with pytest.raises(cachelb.NoWorkerAvailable):
            failed.retry()
    router.set_ready("b", True)
    assert failed.retry().key == "b"


# --- retry() when everything was tried ---


def exhaust(decision: Any, errors: list[BaseException | int | None]) -> cachelb.NoWorkerAvailable:
    """Fail with each error in turn; None only tries again."""
    keys = []
    for at, error in enumerate(errors):
        keys.append(decision.key)
        if error is not None:
            decision.on_error(error)
        if at + 1 < len(errors):
            decision = decision.retry()
    with pytest.raises(cachelb.NoWorkerAvailable) as info:
        decision.retry()
    assert list(map(info.value.reasons.get, keys)) == [OUTCOMES[str(error)] for error in errors]
    return info.value


OUTCOMES = {
    "502": "already tried: failed (status 502)",
    "429": "already tried: backpressure (status 429)",
    "404": "already tried: client (status 404)",
    "http://secret@host": "already tried: failed (ConnectionRefusedError)",
    "None": "already tried: failed",
}


def test_an_exhausted_retry_names_what_came_of_each_worker() -> None:
    router = make(("a", "b", "c", "d", "e"), health=Health(breaker_failures=0))
    router.set_ready("e", False)
    error = exhaust(single(router), [502, 429, ConnectionRefusedError("http://secret@host"), None])
    assert error.reasons["e"] == "not ready"
    assert all(f"{key} is {why}" in str(error) for key, why in error.reasons.items())
    assert "secret" not in str(error)


def test_an_exhausted_retry_of_a_bare_policy_and_of_a_pair_names_it_too() -> None:
    exhaust(LeastLoaded(seed=1).select_worker(["a", "b"], by_load=True), [404, None])
    router = make((), pairs=Pairs(uncached_token_threshold=0))
    router.add_worker("p", role="prefill")
    router.add_worker("d", role="decode")
    pair = router.select_pair(tokens=PROMPT)
    pair.on_prefilled()
    pair.on_error(500)
    with pytest.raises(cachelb.NoWorkerAvailable) as info:
        pair.retry()
    assert info.value.reasons["d"] == "already tried: failed (status 500)"


# --- dropped decisions ---


def held_until(stage: str, select: Callable[[Any], Any], router: Any) -> list[Any]:
    """Return the only reference to a decision whose request has come so far."""
    decision = select(router)
    if stage != "booked":
        decision.on_first_token()
    if stage == "tokens":
        decision.on_tokens(3)
    return [decision]


def is_left(router: Any) -> tuple[Any, ...]:
    """Return the counts and loads of a router, and its matches of the prompt and of another one."""
    known = [
        sorted((each.key, each.matched_tokens) for each in router.explain(tokens=tokens).candidates)
        for tokens in (PROMPT, OTHER)
    ]
    return counts(router), router.loads(), known


@pytest.mark.parametrize("select", [single, pair])
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("policy", sorted(cachelb.policies.POLICIES))
def test_a_dropped_decision_leaves_what_a_cancelled_one_leaves(
    policy: str, stage: str, select: Callable[[Any], Any]
) -> None:
    cancelled, dropped = (make(policy=policy, pairs=Pairs(fallback=True)) for _ in range(2))
    held_until(stage, select, cancelled).pop().cancel()
    held_until(stage, select, dropped).clear()
    gc.collect()
    assert is_left(dropped) == is_left(cancelled)
    assert set(dropped.loads().values()) == {0}
    assert (dropped.stats().endings["abandoned"], cancelled.stats().endings["cancelled"]) == (1, 1)


def test_a_dropped_decision_of_a_bare_policy_leaves_no_placement() -> None:
    policy = cachelb.policies.CacheAware(seed=1, hash_seed=1)
    for end in (lambda decision: None, lambda decision: decision.cancel()):
        end(policy.select_worker(["a", "b"], tokens=PROMPT))
        gc.collect()
        assert policy.select_worker(["a", "b"], tokens=PROMPT).matched_tokens == 0
