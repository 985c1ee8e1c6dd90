"""Counters of a router: the token funnel, selection times, evictions, shadows, decisions by policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.routers import flat_router

from cachelb import Health, Pairs, Router, policies
from cachelb.policies import CacheAware, LeastLoaded
from cachelb.types import Funnel

NONE = Funnel(0, 0, 0, 0, 0, 0, 0)


def serve(router: Router[str], *, cached: int | None, **request: Any) -> None:
    router.select_worker(**request, by_load=True).on_complete(cached_tokens=cached)


# --- funnel ---


def test_every_sum_of_the_funnel_is_over_the_same_requests() -> None:
    router = Router(["a", "b"], seed=1)
    serve(router, cached=None, tokens=range(100))
    assert router.stats().funnel == NONE
    holder = router.records.recent()[0].key
    serve(router, cached=90, tokens=range(100))
    assert router.stats().funnel == Funnel(1, 100, 96, 96, 90, 96, 0)
    other = "b" if holder == "a" else "a"
    serve(router, cached=0, tokens=range(100), among=[other])
    # The best holder is searched among the candidates of the request only.
    assert router.stats().funnel == Funnel(2, 200, 96 + 0, 96 + 0, 90, 96 + 0, 0)


def test_a_worker_that_held_more_is_lost_between_best_and_selected() -> None:
    router = Router(["a", "b"], seed=1, policy="round-robin", shadow=["cache-aware"])
    serve(router, cached=0, tokens=range(100))
    serve(router, cached=0, tokens=range(100))  # the other worker's turn
    assert router.stats().funnel == Funnel(2, 200, 96, 0, 0, 0, 0)


BLIND = ["least-loaded", "power-of-two", "round-robin", "random", "rendezvous", "length-bucket"]


@pytest.mark.parametrize("policy", BLIND)
def test_policies_that_ignore_prefixes_still_tell_what_was_held(policy: str) -> None:
    router = Router(["a", "b"], seed=1, policy=policy)
    router.select_worker(tokens=range(64), among=["a"]).on_complete(cached_tokens=0)
    router.select_worker(tokens=range(64), among=["b"]).on_complete(cached_tokens=0)
    router.select_worker(tokens=range(64)).on_complete(cached_tokens=0)
    assert router.stats().funnel.best_matched_tokens == 48
    without = Router(["a", "b"], seed=1, policy=policy, pairs=Pairs(prefill="least-loaded"))
    for _ in range(2):
        without.select_worker(tokens=range(64), among=["a"]).on_complete(cached_tokens=0)
    assert (without.stats().funnel.best_matched_tokens, without.stats().index_blocks) == (0, 0)


@pytest.mark.parametrize(
    "end",
    [
        lambda decision: decision.cancel(),
        lambda decision: decision.on_error(500),
        lambda decision: decision.on_complete(output_tokens=5),
    ],
    ids=["cancelled", "failed", "nothing reported"],
)
def test_a_request_that_says_nothing_of_caches_is_not_counted(end: Callable[[Any], object]) -> None:
    router = Router(["a"])
    end(router.select_worker(tokens=range(100)))
    assert router.stats().funnel == NONE


def test_a_prompt_given_as_text_is_counted_in_the_engines_tokens() -> None:
    router = Router(["a"], seed=1)
    text = "x" * 4000  # 1,000 tokens by the estimate
    router.select_worker(text=text).on_complete()
    decision = router.select_worker(text=text)
    decision.on_complete(cached_tokens=480, prompt_tokens=500)
    assert decision.prompt_tokens == 1000
    matched = decision.matched_tokens // 2
    assert router.stats().funnel == Funnel(1, 500, matched, matched, 480, matched, 0)


def test_an_engine_cannot_report_more_cached_tokens_than_the_prompt_has() -> None:
    router = Router(["a"])
    serve(router, cached=1000, tokens=range(100))
    serve(router, cached=1000)  # a request without any length has no denominator
    assert router.stats().funnel == Funnel(1, 100, 0, 0, 100, 0, 0)


def pair_router(**options: Any) -> Router[str]:
    router = flat_router((), options, seed=1, policy="cache-aware", prefill_policy="cache-aware")
    router.add_worker("p", role="prefill")
    router.add_worker("d", role="decode")
    return router


def test_what_the_decode_worker_of_a_pair_reports_does_not_count() -> None:
    router = pair_router()
    pair = router.select_pair(tokens=range(100))
    assert pair.prefill is not None
    pair.prefill.on_complete(cached_tokens=0)
    pair.decode.on_complete(cached_tokens=100)
    assert router.stats().funnel == Funnel(1, 100, 0, 0, 0, 0, 0)


def test_the_prefill_workers_report_counts_when_it_comes_after_the_first_token() -> None:
    router = pair_router()
    router.select_pair(tokens=range(100)).on_complete()
    pair = router.select_pair(tokens=range(100))
    pair.on_first_token()  # releases the prefill worker
    pair.on_complete(cached_tokens=80)
    pair.on_complete(cached_tokens=80)
    assert router.stats().funnel == Funnel(1, 100, 96, 96, 80, 96, 0)
    assert [(record.part, record.cached_tokens) for record in router.records.recent(2)] == [
        ("prefill", 80),
        ("decode", None),
    ]


def test_a_decode_worker_that_did_the_prefill_counts() -> None:
    router = pair_router(pd_uncached_token_threshold=1000)
    pair = router.select_pair(tokens=range(100))
    assert pair.prefill is None
    pair.on_complete(cached_tokens=7)
    assert router.stats().funnel == Funnel(1, 100, 0, 0, 7, 0, 0)


# --- decisions ---


def test_decisions_are_counted_under_the_policy_that_took_them() -> None:
    router = pair_router()
    router.select_worker(tokens=range(32)).cancel()
    router.select_pair(tokens=range(64)).cancel()
    decisions = router.stats().decisions
    assert sum(decisions.values()) == 3
    assert {policy for policy, _ in decisions} == {"cache-aware", "least-loaded"}
    assert sum(n for (policy, _), n in decisions.items() if policy == "least-loaded") == 1
    assert [(record.part, record.policy) for record in router.records.recent()] == [
        ("whole", "cache-aware"),
        ("prefill", "cache-aware"),
        ("decode", "least-loaded"),
    ]


# --- selection times ---


def test_every_eighth_selection_is_timed_and_nothing_else() -> None:
    router = pair_router()
    for _ in range(8):
        router.select_worker(by_load=True).cancel()
        router.select_worker(dry_run=True, by_load=True)
        router.explain()
    router.select_pair(tokens=range(64)).cancel()
    histogram = router.stats().select_seconds
    assert sum(histogram.counts) == 2
    assert len(histogram.counts) == len(histogram.bounds) + 1
    assert list(histogram.bounds) == sorted(histogram.bounds)
    assert 0 < histogram.sum < 60


# --- workers ---


def test_the_state_of_a_worker_is_what_keeps_it_out_now() -> None:
    now = [0.0]
    router: Router[str] = Router(seed=1, clock=lambda: now[0], health=Health(veto_waiting=5, breaker_failures=2))
    for key, role in {"p": "prefill", "d": "decode", "n": "both", "f": "both", "v": "both", "x": "both"}.items():
        router.add_worker(key, role=role)  # type: ignore[arg-type]  # one of the three
    router.set_ready("n", False)
    for _ in range(2):
        router.select_worker(among=["f"], by_load=True).on_error(500)
    router.load_sink.update_load("v", waiting=7)
    held = router.select_worker(among=["x"], by_load=True)
    router.remove_worker("x", drain=True)

    def states() -> dict[str, str]:
        return {worker.key: worker.state for worker in router.stats().workers}

    assert states() == {
        "p": "ready",
        "d": "ready",
        "n": "not ready",
        "f": "failing",
        "v": "overloaded",
        "x": "draining",
    }
    held.on_complete()
    now[0] = 60.0
    assert states() == {"p": "ready", "d": "ready", "n": "not ready", "f": "ready", "v": "ready"}


# --- blocks ---


def test_blocks_lost_are_counted_by_cause() -> None:
    now = [0.0]
    router = Router(["a"], policy=CacheAware(ttl_s=10, max_blocks_per_worker=8), clock=lambda: now[0], hash_seed=1)
    router.select_worker(tokens=range(128)).on_complete()
    router.select_worker(tokens=range(1000, 1064)).on_complete()
    assert router.stats().evictions["capacity"] == 4
    assert router.stats().workers[0].index_blocks == {"gpu": 8}
    now[0] = 20.0
    router.select_worker(tokens=range(2000, 2048)).on_error(500)
    router.select_worker(tokens=range(3000, 3032)).on_complete()
    router.load_sink.reset_cache("a")
    assert router.stats().workers[0].index_blocks == {}
    router.select_worker(tokens=range(4000, 4080)).on_complete()
    router.remove_worker("a")
    assert router.stats().evictions == {
        "capacity": 4,
        "ttl": 8,
        "memory": 0,
        "removed": 5,
        "cleared": 2,
        "failed": 3,
    }


def test_chains_that_contradict_what_is_stored_are_counted() -> None:
    router = Router(["a"], policy="cache-aware")
    router.select_worker(blocks=[1, 2, 3], prompt_tokens=48).on_complete()
    router.select_worker(blocks=[9, 2, 3], prompt_tokens=48).on_complete()
    dropped = {reason: count for reason, count in router.stats().dropped.items() if count > 0}
    assert dropped == {"conflict": 1}


# --- shadows ---


def play(router: Router[str], requests: int = 200) -> list[tuple[str, str]]:
    """Send chats that grow, a third of them still open at any time; return worker and reason of each pick."""
    picks = []
    open_decisions: list[Any] = []
    for i in range(requests):
        decision = router.select_worker(tokens=range(i % 7 * 100_000, i % 7 * 100_000 + 64 + i * 3), session=str(i % 7))
        picks.append((decision.key, str(decision.reason)))
        open_decisions.append(decision)
        if len(open_decisions) > 6:
            open_decisions.pop(i % 5).on_complete(cached_tokens=decision.matched_tokens)
    for decision in open_decisions:
        decision.on_complete()
    return picks


def name_of(policy: str | LeastLoaded) -> str:
    return policy if isinstance(policy, str) else "least-loaded by tokens"


@pytest.mark.parametrize("policy", [*policies.POLICIES, LeastLoaded(load="tokens", seed=5)], ids=name_of)
def test_a_shadow_moves_no_pick_and_books_nothing(policy: str | LeastLoaded) -> None:
    workers = ["a", "b", "c", "d"]
    options: dict[str, Any] = {"policy": policy, "seed": 5, "hash_seed": 5, "clock": lambda: 1.0}
    alone = flat_router(workers, options)
    watched = flat_router(workers, options, shadow=list(policies.POLICIES))
    assert play(alone) == play(watched)
    first, second = alone.stats(), watched.stats()
    assert second.decisions == first.decisions
    assert second.endings == first.endings
    assert watched.loads() == alone.loads()
    assert second.open_requests == 0
    watched.validate()


def test_a_shadow_of_the_same_policy_always_agrees() -> None:
    router = Router(["a", "b", "c"], policy="rendezvous", seed=5, shadow=["rendezvous", "round-robin"])
    play(router, 90)
    same, other = router.stats().shadows
    assert (same.policy, same.decisions, same.agreed, same.agreement) == ("rendezvous", 90, 90, 1.0)
    assert (other.policy, other.decisions) == ("round-robin", 90)
    assert 0 < other.agreed < 90


def test_shadow_picks_are_recorded_with_the_hits_they_predict() -> None:
    router = Router(["a", "b", "c"], policy="round-robin", seed=5, shadow=[CacheAware(seed=5)])
    play(router)
    records = router.records.recent(1000)
    (tally,) = router.stats().shadows
    picks = [record.shadows[0] for record in records]
    assert Counter(pick.agrees for pick in picks)[True] == tally.agreed
    assert all(pick.agrees == (pick.key == record.key) for pick, record in zip(picks, records, strict=True))
    assert sum(pick.matched_tokens for pick in picks) == tally.matched_tokens
    assert sum(record.matched_tokens for record in records) == tally.first_matched_tokens
    assert tally.matched_tokens > tally.first_matched_tokens
    assert {pick.policy for pick in picks} == {"cache-aware"}


def test_shadows_are_listed_before_the_first_decision() -> None:
    (tally,) = Router(["a"], shadow=["random"]).stats().shadows
    assert (tally.policy, tally.decisions, tally.agreement) == ("random", 0, None)
