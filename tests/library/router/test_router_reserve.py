"""A booking that another selector made, replayed by its peers: the same loads and the same cached prefixes."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.models.loads import NaiveFleet
from tests.routers import flat_router

from cachelb import Decision, NoWorkerAvailable, Pairs, Router, UnknownWorkerError
from cachelb.index import hash_blocks
from cachelb.testing import ManualClock

WORKERS = ("a", "b", "c")
PROMPT = range(1_000)


def make(*, roles: bool = False, **options: Any) -> Router[str]:
    router = flat_router((), options, hash_seed=7, clock=ManualClock())
    if roles:
        router.add_worker("p", role="prefill")
        router.add_worker("d", role="decode")
    else:
        router.sync_workers(WORKERS)
    return router


def replay(peer: Router[str], decision: Decision[str]) -> Decision[str]:
    """Book at a peer what a router picked."""
    told = decision.reservation()
    return peer.reserve(
        decision.key,
        blocks=told["sequence_hashes"],
        prompt_tokens=told["isl_tokens"],
        track_prefill_tokens=told["track_prefill_tokens"],
    )


def loads(router: Router[str]) -> dict[str, tuple[int, int, int]]:
    return {row.key: (row.inflight, row.pending_prefill_tokens, row.decode_blocks) for row in router.stats().workers}


@pytest.mark.parametrize("seed", range(8))
def test_peer_has_the_loads_and_prefixes_of_the_selector_after_every_step(seed: int) -> None:
    draw = random.Random(seed)
    router, peer, model = make(seed=seed), make(seed=seed + 1), NaiveFleet()
    for key in WORKERS:
        model.add(key, 1)
    held: list[tuple[set[tuple[int, ...]], str]] = []
    open_: list[tuple[Decision[str], Decision[str], Any]] = []
    for _ in range(60):
        match draw.randrange(4):
            case 0 if open_:
                first, second, booking = draw.choice(open_)
                booking.more(n := draw.randrange(40))
                first.on_tokens(n)
                second.on_tokens(n)
            case 1 if open_:
                first, second, booking = open_.pop(draw.randrange(len(open_)))
                model.close(booking)
                first.on_complete()
                second.on_complete()
            case _:
                family = draw.randrange(5)
                tokens = [*range(family * 1_000, family * 1_000 + draw.randrange(20, 400))]
                first = router.select_worker(tokens=tokens)
                second = replay(peer, first)
                blocks = [tuple(tokens[: end + 16]) for end in range(0, len(tokens) - 15, 16)]
                mine = set().union(*(path for path, key in held if key == first.key))
                cached = 16 * next((n for n, block in enumerate(blocks) if block not in mine), len(blocks))
                assert first.matched_tokens == second.matched_tokens <= len(tokens)
                assert abs(first.matched_tokens - cached) <= 16  # a whole prompt is never cached to the last token
                held.append((set(blocks), first.key))
                uncached = len(tokens) - first.matched_tokens
                open_.append((first, second, model.book(first.key, None, len(tokens), uncached)))
        assert loads(router) == loads(peer) == model.loads()
    router.validate()
    peer.validate()
    for family in range(5):
        asked: dict[str, Any] = {"tokens": range(family * 1_000, family * 1_000 + 400), "among": ["a"], "dry_run": True}
        assert (
            router.select_worker(**asked, by_load=True).matched_tokens
            == peer.select_worker(**asked, by_load=True).matched_tokens
        )


def test_halves_of_a_pair_are_booked_as_halves() -> None:
    router = make(roles=True, pairs=Pairs(uncached_token_threshold=10))
    peer = make(roles=True)
    pair = router.select_pair(tokens=PROMPT)
    assert pair.prefill is not None
    assert [half.reservation()["track_prefill_tokens"] for half in (pair.prefill, pair.decode)] == [True, False]
    copies = [replay(peer, half) for half in (pair.prefill, pair.decode)]
    assert loads(peer) == loads(router) == {"p": (1, 1_000, 0), "d": (1, 0, 0)}
    assert [copy.reservation() for copy in copies] == [half.reservation() for half in (pair.prefill, pair.decode)]


def test_pair_without_a_prefill_worker_computes_the_prompt_itself() -> None:
    router = make(roles=True, pairs=Pairs(uncached_token_threshold=10_000))
    decision = router.select_pair(tokens=PROMPT).decode
    assert decision.reservation()["track_prefill_tokens"] is True
    peer = make(roles=True)
    copy = replay(peer, decision)
    assert (loads(peer)["d"], copy.key) == ((1, 1_000, 0), "d")


@pytest.mark.parametrize("name", ["lora", "cache_salt"])
def test_hashes_carry_adapter_and_salt(name: str) -> None:
    router = make()
    plain = router.select_worker(tokens=PROMPT).reservation()
    kept: dict[str, Any] = {name: "x"}
    other = router.select_worker(tokens=PROMPT, **kept).reservation()
    assert plain["sequence_hashes"] == [*map(int, hash_blocks(PROMPT, seed=7))]
    assert not set(plain["sequence_hashes"]) & set(other["sequence_hashes"])


@pytest.mark.parametrize(
    ("options", "request_", "tokens"),
    [
        ({}, {"text": "Once upon a time. " * 40}, 180),
        ({}, {"prompt_tokens": 500}, 500),
        ({"policy": "cache-aware", "index": "radix"}, {"tokens": PROMPT}, 1_000),
    ],
    ids=["text", "length", "tree"],
)
def test_without_blocks_of_an_engine_the_length_alone_is_booked(
    options: dict[str, Any], request_: dict[str, Any], tokens: int
) -> None:
    decision = make(**options).select_worker(**request_, by_load=True)
    assert decision.reservation() == {"sequence_hashes": [], "isl_tokens": tokens, "track_prefill_tokens": True}
    peer = make()
    kept = replay(peer, decision)
    assert loads(peer)[kept.key] == (1, tokens, 0)


def test_worker_is_the_one_given_whatever_the_load() -> None:
    router = make(policy="least-loaded")
    booked = [router.reserve("b", tokens=PROMPT) for _ in range(5)]
    assert {decision.worker for decision in booked} == {"b"}
    assert router.loads() == {"a": 0, "b": 5, "c": 0}
    with pytest.raises(NoWorkerAvailable, match="already tried"):
        booked[0].retry()
    for decision in booked:
        decision.cancel()
    assert router.loads() == {"a": 0, "b": 0, "c": 0}


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"worker": "z"}, UnknownWorkerError, 'worker "z" is not registered'),
        ({"worker": "a", "among": ["b"]}, TypeError, "leave out among="),
        ({"worker": "a", "exclude": ["b"]}, TypeError, "leave out exclude="),
        ({"worker": "a", "track_prefill_tokens": 1}, TypeError, "track_prefill_tokens must be a bool, not int"),
        ({"worker": "a", "prompt": "x"}, TypeError, "unexpected keyword argument 'prompt'"),
        ({"worker": "c"}, NoWorkerAvailable, "c is not ready"),
    ],
)
def test_what_cannot_be_booked_is_refused_and_nothing_is_booked(
    given: dict[str, Any], error: type[Exception], message: str
) -> None:
    router = make()
    router.set_ready("c", False)
    with pytest.raises(error, match=message):
        router.reserve(**given)
    assert router.loads() == {"a": 0, "b": 0, "c": 0}


# --- how long a placement counts ---


@pytest.mark.parametrize("options", [{}, {"policy": "prefix-affinity"}, {"policy": "cache-aware", "index": "radix"}])
def test_placement_counts_for_its_lifetime_after_each_use(options: dict[str, Any]) -> None:
    clock = ManualClock()
    router = make(clock=clock, **options)

    def matched() -> bool:
        return router.select_worker(tokens=PROMPT, dry_run=True).matched_tokens > 900

    router.select_worker(tokens=PROMPT, cache_ttl_s=10).on_complete()
    clock.advance(9)
    assert matched()
    router.select_worker(tokens=PROMPT, cache_ttl_s=10).on_complete()
    clock.advance(9)
    assert matched()
    clock.advance(1)
    assert not matched()


def test_shorter_of_two_lifetimes_counts_and_others_keep_theirs() -> None:
    clock = ManualClock()
    router = make(clock=clock, ttl_s=20)
    for tokens, seconds in ((PROMPT, 10), (range(5_000, 6_000), 3_600), (range(8_000, 9_000), None)):
        router.select_worker(tokens=tokens, cache_ttl_s=seconds).on_complete()
    held = []
    for _ in range(3):
        blocks = [router.select_worker(tokens=range(at, at + 1_000), dry_run=True) for at in (0, 5_000, 8_000)]
        held.append([decision.matched_tokens > 900 for decision in blocks])
        clock.advance(11)
    assert held == [[True] * 3, [False, True, True], [False] * 3]
    router.validate()
