"""Pairs: when prefill is worth a worker of its own, and that the two roles share no state."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.routers import flat_router

import cachelb
from cachelb import Router


def make(**options: Any) -> Router[str]:
    router = flat_router((), options, seed=1, clock=lambda: 0.0)
    for n in range(2):
        router.add_worker(f"p{n}", role="prefill")
        router.add_worker(f"d{n}", role="decode")
    return router


@pytest.mark.parametrize(
    ("threshold", "request_", "local"),
    [
        (256, {"prompt_tokens": 255}, True),
        (256, {"prompt_tokens": 256}, False),
        (256, {"tokens": range(255)}, True),
        (256, {"tokens": range(256)}, False),
        (0, {"prompt_tokens": 1}, False),
        (0, {}, False),
    ],
)
def test_few_uncached_tokens_are_prefilled_where_they_are_decoded(
    threshold: int, request_: dict[str, Any], local: bool
) -> None:
    router = make(pd_uncached_token_threshold=threshold)
    with router.select_pair(**request_, by_load=True) as pair:
        assert (pair.prefill is None) is local
        assert (pair.decode.reason == "local-decode") is local
        assert sum(router.loads().values()) == (1 if local else 2)


def test_only_uncached_tokens_count_for_the_threshold() -> None:
    router = make(pd_uncached_token_threshold=256, decode_policy="cache-aware")
    with router.select_pair(tokens=range(1600)) as first:
        assert first.prefill is not None
    with router.select_pair(tokens=[*range(1600), *range(9000, 9255)]) as again:
        assert (again.prefill, again.decode.key) == (None, first.decode.key), "255 are new"
    with router.select_pair(tokens=[*range(1600), *range(8000, 8256)]) as longer:
        assert longer.prefill is not None, "256 are new"


def test_each_role_has_a_turn_of_its_own() -> None:
    """One counter for both would give each role's workers every other turn, and so always the same worker."""
    router = make(prefill_policy="round-robin", decode_policy="round-robin")
    picks: Counter[str] = Counter()
    for _ in range(100):
        with router.select_pair(prompt_tokens=1000, by_load=True) as pair:
            assert pair.prefill is not None
            picks[pair.prefill.key] += 1
            picks[pair.decode.key] += 1
    assert picks == {"p0": 50, "p1": 50, "d0": 50, "d1": 50}


def test_each_role_binds_sessions_of_its_own() -> None:
    router = make(prefill_policy="session", decode_policy="session")
    pairs = []
    for _ in range(3):
        with router.select_pair(prompt_tokens=1000, session="chat", by_load=True) as pair:
            pair.decode.on_first_token()
            assert pair.prefill is not None
            pairs.append((pair.prefill.key, pair.decode.key))
    assert len(set(pairs)) == 1
    prefill, decode = pairs[0]
    router.set_ready(prefill, False)
    with router.select_pair(prompt_tokens=1000, session="chat", by_load=True) as pair:
        assert pair.prefill is not None
        assert (pair.prefill.key != prefill, pair.decode.key) == (True, decode)


@pytest.mark.parametrize("fallback", [True, False])
def test_without_a_prefill_worker_the_fallback_decides(fallback: bool) -> None:
    router = make(pd_fallback=fallback)
    for key in ("p0", "p1"):
        router.set_ready(key, False)
    if fallback:
        with router.select_pair(prompt_tokens=1000, by_load=True) as pair:
            assert (pair.prefill, pair.decode.reason) == (None, "local-decode")
    else:
        with pytest.raises(cachelb.NoWorkerAvailable) as info:
            router.select_pair(prompt_tokens=1000, by_load=True)
        assert info.value.reasons["p0"] == "not ready"
    assert set(router.loads().values()) == {0}


# --- weighed by cost ---


def busy(router: Router[str], *, count: int = 8) -> list[cachelb.Decision[str]]:
    """Have every decode worker generate for some requests, as long as the decisions are kept."""
    decisions = [router.select_worker(prompt_tokens=16, among=[f"d{n % 2}"], by_load=True) for n in range(count)]
    for decision in decisions:
        decision.on_tokens(1)
    return decisions


@pytest.mark.parametrize("slow", [{"pd_transfer_ms": 1e6}, {"pd_transfer_ms_per_token": 100.0}], ids=str)
def test_a_transfer_that_takes_for_ever_is_not_made(slow: dict[str, float]) -> None:
    router, usual = make(**slow), make()
    running = busy(router), busy(usual)
    with router.select_pair(tokens=range(1600)) as pair, usual.select_pair(tokens=range(1600)) as other:
        assert pair.prefill is None
        assert other.prefill is not None
    assert len(running) == 2


@pytest.mark.parametrize("option", ["transfer_ms", "transfer_ms_per_token"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_transfer_takes_a_finite_time(option: str, value: float) -> None:
    given: dict[str, Any] = {option: value}
    with pytest.raises(ValueError, match=f"^{option} must be"):
        make(pairs=cachelb.Pairs(**given))


def test_a_role_with_a_policy_of_its_own_is_not_weighed() -> None:
    for half in ({"prefill_policy": "least-loaded"}, {"decode_policy": "least-loaded"}, {"policy": "cache-aware"}):
        router = make(**half)
        with router.select_pair(tokens=range(64)) as pair:
            assert pair.prefill is not None, half


def test_a_dry_run_of_a_weighed_pair_tells_the_next_one() -> None:
    router = make()
    pairs = []
    for n in range(30):
        prompt = range(5000 * (n % 7), 5000 * (n % 7) + 300 * (n % 11) + 1)
        dry = router.select_pair(tokens=prompt, dry_run=True)
        loads = router.loads()
        real = router.select_pair(tokens=prompt)
        pairs.append(real)
        assert sum(router.loads().values()) == sum(loads.values()) + (1 if real.prefill is None else 2)
        keys = [None if pair.prefill is None else pair.prefill.key for pair in (dry, real)]
        assert (keys[0], dry.decode.key) == (keys[1], real.decode.key)
        real.on_prefilled()
        real.on_tokens(1)
    assert {pair.prefill is None for pair in pairs} == {True, False}
    router.validate()
