"""Snapshots of a router: what a router that starts later knows, and what it refuses."""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.library.state.transports import OTHER, SECRET, WORKERS
from tests.models.loads import indexed_blocks
from tests.routers import flat_router
from tests.threads import beside

from cachelb import CachelbError, Router
from cachelb.errors import SnapshotError
from cachelb.index import BlockTracker
from cachelb.router.shared_state import SharedState

BLOCK = 4


def make_router(workers: Sequence[str] = WORKERS, **options: Any) -> Router[str]:
    return flat_router(workers, options, secret=SECRET, seed=1, block_size=BLOCK)


def route(router: Router[str], tokens: Sequence[int], **request: Any) -> str:
    decision = router.select_worker(tokens=tokens, **request)
    decision.on_complete()
    return decision.worker


def test_a_build_without_sharing_names_the_feature_it_lacks() -> None:
    class Without:
        _fleet = object()

    with pytest.raises(CachelbError, match="cargo feature `sharing`"):
        SharedState(cast("Router[str]", Without())).publish()


def story(of: int, blocks: int = 20) -> list[int]:
    """A prompt that begins like those of the same remainder by 3, and has one token beyond its last block."""
    return [of % 3] * (BLOCK * 2) + [1000 + of] * (BLOCK * (blocks - 2)) + [1]


def overlaps(router: Router[str], tokens: Sequence[int], **request: Any) -> dict[str, float]:
    return {seen.key: seen.matched_tokens for seen in router.explain(tokens=tokens, **request).candidates}


Prompts = st.lists(
    st.tuples(st.integers(0, 3), st.lists(st.integers(0, 2), min_size=1, max_size=30)), min_size=1, max_size=40
)


@given(prompts=Prompts, capacity=st.sampled_from([3, 8, 1000]), later=Prompts)
def test_restored_router_holds_and_evicts_the_same_as_a_model(
    prompts: list[tuple[int, list[int]]], capacity: int, later: list[tuple[int, list[int]]]
) -> None:
    model = BlockTracker(block_size=BLOCK, max_blocks_per_worker=capacity)
    first = make_router(max_blocks_per_worker=capacity)
    router = make_router(max_blocks_per_worker=capacity)

    def check() -> None:
        for _, tokens in [*prompts, *later]:
            expected = model.overlaps(tokens)
            # The last token is always computed.
            most = (len(tokens) - 1) // BLOCK
            found = {key: tokens / BLOCK for key, tokens in overlaps(router, tokens).items() if tokens}
            assert found == {key: min(most, blocks) for key, blocks in expected.items() if min(most, blocks)}
        assert {key: indexed_blocks(router, key) for key in WORKERS} == {
            key: model.block_count(key) if key in model.workers() else 0 for key in WORKERS
        }

    for at, tokens in prompts:
        route(first, tokens, among=[WORKERS[at]])
        model.record_request(tokens, WORKERS[at])
    restored = router.shared_state.restore(first.shared_state.snapshot())
    assert (restored.workers, restored.unknown_workers, restored.unknown_models) == (4, 0, 0)
    assert restored.blocks == sum(indexed_blocks(router, key) for key in WORKERS)
    check()
    for at, tokens in later:
        route(router, tokens, among=[WORKERS[at]])
        model.record_request(tokens, WORKERS[at])
    check()
    router.validate()


def test_every_model_and_rank_is_kept_and_strangers_are_skipped() -> None:
    models = {"big": 8, "odd": 16}
    first = make_router(models=models)
    first.add_worker("ranks", dp_size=2)
    for model in (None, "big", "odd"):
        for of in range(6):
            route(first, story(of), model=model, among=["ranks"])
            route(first, story(of), model=model)
    data = first.shared_state.snapshot()
    same = make_router(models=models)
    same.add_worker("ranks", dp_size=2)
    restored = same.shared_state.restore(data)
    assert (restored.workers, restored.unknown_workers, restored.unknown_models) == (6, 0, 0)
    for model in (None, "big", "odd"):
        for of in range(6):
            assert overlaps(same, story(of), model=model) == overlaps(first, story(of), model=model)
    less = make_router(WORKERS[:2], models={"big": 8, "odd": 4})
    restored = less.shared_state.restore(data)
    assert (restored.workers, restored.unknown_workers, restored.unknown_models) == (2, 4, 1)
    known = {WORKERS[0], WORKERS[1]}
    for of in range(6):
        expected = {key: tokens for key, tokens in overlaps(first, story(of), model="big").items() if key in known}
        assert overlaps(less, story(of), model="big") == expected
        assert set(overlaps(less, story(of), model="odd").values()) == {0}
    less.validate()


@pytest.mark.parametrize("policy", ["cache-aware", "prefix-affinity", "round-robin", "session", "boundary-learning"])
def test_every_policy_can_be_kept(policy: str) -> None:
    first, router = make_router(policy=policy), make_router(policy=policy)
    for of in range(6):
        route(first, story(of))
    assert router.shared_state.restore(first.shared_state.snapshot()).workers == 4
    assert set(router.loads().values()) == {0}
    router.validate()
    assert {route(router, story(of)) for of in range(6)} <= set(WORKERS)


def test_restored_blocks_expire_unless_they_are_found_again() -> None:
    now = [0.0]
    first, router = make_router(), make_router(clock=lambda: now[0])
    again, forgotten = story(0), story(1)
    homes = [route(first, again), route(first, forgotten)]
    router.shared_state.restore(first.shared_state.snapshot(), ttl_s=100.0)
    assert route(router, again) == homes[0]
    now[0] = 101.0
    route(router, [9] * 99)
    assert max(overlaps(router, again).values()) == 80
    assert max(overlaps(router, forgotten).values()) == 0


def test_worker_with_events_of_its_own_only_expects_what_was_kept() -> None:
    now = [0.0]
    first = make_router(["gpu0"], policy="kv-aware")
    router = make_router(["gpu0"], policy="kv-aware", clock=lambda: now[0])
    route(first, story(0))
    router.event_sink.apply_events("gpu0", b"\x92\x01\x91\x91\xb0AllBlocksCleared", seq=0)
    router.shared_state.restore(first.shared_state.snapshot())
    assert overlaps(router, story(0)) == {"gpu0": 80}
    now[0] = 5.0
    route(router, [9] * 99)
    assert overlaps(router, story(0)) == {"gpu0": 0}


# --- what is refused ---


def sample() -> Router[str]:
    router = make_router()
    for of in range(12):
        route(router, story(of, 5 + of))
    return router


@functools.cache
def sample_data() -> bytes:
    return sample().shared_state.snapshot()


def test_foreign_snapshots_say_what_to_change() -> None:
    data = sample().shared_state.snapshot()
    tracker = BlockTracker(block_size=BLOCK)
    for router, wrong, why in [
        (make_router(secret=OTHER), data, "another .*hash_seed"),
        (make_router(hash_seed=8), data, "another .*hash_seed; build this one with the same"),
        (make_router(block_size=16), data, "another block_size"),
        (make_router(secret=None), data, "has no secret.*build it with secret="),
        (make_router(), tracker.snapshot(), "does not start like one of cachelb"),
        (make_router(), data[:4] + b"\x09" + data[5:], "its version is 9"),
        (make_router(), data[:-1], "damaged or cut off"),
        (make_router(), b"", "too short"),
    ]:
        with pytest.raises(SnapshotError, match=why) as caught:
            router.shared_state.restore(wrong)
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, CachelbError)
        assert sum(indexed_blocks(router, key) for key in WORKERS) == 0
    with pytest.raises(SnapshotError, match="build it with secret="):
        make_router(secret=None).shared_state.snapshot()


def test_any_buffer_is_restored_and_nothing_else() -> None:
    for content in (bytearray(sample_data()), memoryview(sample_data())):
        assert make_router().shared_state.restore(content).blocks == sample().stats().index_blocks
    with pytest.raises(TypeError, match="data must be bytes, got str"):
        make_router().shared_state.restore("text")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ttl_s must be above 0"):
        make_router().shared_state.restore(sample_data(), ttl_s=0)


# --- beside traffic ---


def test_snapshots_and_restores_beside_traffic() -> None:
    router = make_router(max_memory_mb=1)
    lasting = [story(of) for of in range(100_000, 100_020)]
    stop = threading.Event()

    def work(first: int) -> None:
        dice = random.Random(first)
        while not stop.is_set():
            route(router, story(dice.randrange(3000), 40))
            for tokens in lasting:
                route(router, tokens)

    for tokens in lasting:
        route(router, tokens)
    with beside(work, range(3), stop):
        for _ in range(8):
            copy = make_router(max_memory_mb=8)
            copy.shared_state.restore(router.shared_state.snapshot())
            copy.validate()
            assert all(max(overlaps(copy, tokens).values()) == 80 for tokens in lasting)
            router.shared_state.restore(copy.shared_state.snapshot())
    assert router.stats().index_bytes <= 1 << 20
    router.validate()


def test_one_snapshot_is_read_by_one_thread() -> None:
    router = sample()
    pieces = router.shared_state.pieces()
    data = b"".join(pieces)
    assert list(pieces) == [], "it is read once"
    assert make_router().shared_state.restore(data).blocks > 0
