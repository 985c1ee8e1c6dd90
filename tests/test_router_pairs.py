"""Pairs: when prefill is worth a worker of its own, and that the two roles share no state."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import cachelb

if TYPE_CHECKING:
    from cachelb import Router


def make(**options: Any) -> Router[str]:
    router = cachelb.Router[str](seed=1, **options)
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
    with router.select_pair(**request_) as pair:
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
        with router.select_pair(prompt_tokens=1000) as pair:
            assert pair.prefill is not None
            picks[pair.prefill.key] += 1
            picks[pair.decode.key] += 1
    assert picks == {"p0": 50, "p1": 50, "d0": 50, "d1": 50}


def test_each_role_binds_sessions_of_its_own() -> None:
    router = make(prefill_policy="session", decode_policy="session")
    pairs = []
    for _ in range(3):
        with router.select_pair(prompt_tokens=1000, session="chat") as pair:
            pair.decode.on_first_token()
            assert pair.prefill is not None
            pairs.append((pair.prefill.key, pair.decode.key))
    assert len(set(pairs)) == 1
    prefill, decode = pairs[0]
    router.set_ready(prefill, False)
    with router.select_pair(prompt_tokens=1000, session="chat") as pair:
        assert pair.prefill is not None
        assert (pair.prefill.key != prefill, pair.decode.key) == (True, decode)


@pytest.mark.parametrize("fallback", [True, False])
def test_without_a_prefill_worker_the_fallback_decides(fallback: bool) -> None:
    router = make(pd_fallback=fallback)
    for key in ("p0", "p1"):
        router.set_ready(key, False)
    if fallback:
        with router.select_pair(prompt_tokens=1000) as pair:
            assert (pair.prefill, pair.decode.reason) == (None, "local-decode")
    else:
        with pytest.raises(cachelb.NoWorkerAvailable) as info:
            router.select_pair(prompt_tokens=1000)
        assert info.value.reasons["p0"] == "not ready"
    assert set(router.loads().values()) == {0}
