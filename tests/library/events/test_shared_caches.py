"""Caches that workers of a model read: fed by their own events or those of workers, credited to every candidate."""

from __future__ import annotations

from typing import Any

import pytest
from tests.library.events.test_router_events import PROMPT, batch, blocks
from tests.library.router.test_router_fork import in_child
from tests.routers import flat_router

import cachelb
from cachelb_fakes.events import cleared, removed, stored

LONG = list(range(16 * 12 + 1))
SECRET = "known to all gateways"  # noqa: S105 - of these tests


def router(**options: Any) -> cachelb.Router[str]:
    return flat_router(["a", "b"], options, seed=1, clock=lambda: 0.0)


def whole(count: int, **fields: Any) -> dict[str, Any]:
    return stored(range(1, count + 1), LONG[: 16 * count], **fields)


def seen(routed: cachelb.Router[str], tokens: list[int] = LONG, **request: Any) -> dict[str, tuple[float, int, int]]:
    """Blocks that each worker is credited, holds, and can read from the shared cache."""
    views = routed.explain(tokens=tokens, **request).candidates
    return {view.key: (round(view.matched_tokens / 16, 6), view.overlap_blocks, view.shared_blocks) for view in views}


def test_its_own_events_are_credited_to_every_worker() -> None:
    routed = router()
    routed.shared_caches.add("store")
    routed.event_sink.apply_events("a", batch(whole(4)), seq=0)
    assert routed.event_sink.apply_events("store", batch(whole(12, medium="cpu")), seq=0) == 1
    assert routed.shared_caches.blocks() == {"store": 12}
    assert seen(routed) == {"a": (8.8, 4, 8), "b": (7.2, 0, 12)}
    assert (routed.keys(), set(routed.loads())) == (["a", "b"], {"a", "b"})
    assert [worker.key for worker in routed.stats().workers] == ["a", "b"]
    decision = routed.select_worker(tokens=LONG)
    assert (decision.worker, decision.matched_tokens) == ("a", 192)
    routed.event_sink.apply_events("store", batch(removed([5])), seq=1)
    assert seen(routed, among=["b"])["b"] == (2.4, 0, 4)
    routed.validate()


@pytest.mark.parametrize(
    ("media", "fields", "shared"),
    [
        ((), {"medium": "EXTERNAL"}, 12),
        ((), {"medium": "cpu"}, 0),
        (("cpu",), {"medium": "cpu"}, 12),
        (("disk",), {"medium": "STORAGE"}, 12),
        (("disk",), {"medium": "cpu"}, 0),
        (("cpu",), {"medium": "GPU"}, 0),
    ],
)
def test_what_workers_announce_of_it_is_its_own(media: tuple[Any, ...], fields: dict[str, Any], shared: int) -> None:
    routed = router()
    routed.shared_caches.add("store", media=media)
    routed.event_sink.apply_events("a", batch(whole(2), whole(12, **fields)), seq=0)
    assert routed.shared_caches.blocks() == {"store": shared}
    assert seen(routed)["b"] == (round(shared * 0.6, 6), 0, shared)
    # A store of another worker follows the blocks of the first, and the loss of a worker's cache is its own.
    routed.event_sink.apply_events("b", batch(stored([13], range(192, 208), parent=12, **fields)), seq=0)
    routed.event_sink.apply_events("a", batch(cleared()), seq=1)
    assert routed.shared_caches.blocks() == {"store": shared + (1 if shared else 0)}
    routed.load_sink.reset_cache("a")
    routed.remove_worker("b")
    assert seen(routed)["a"][2] == shared
    routed.event_sink.apply_events("a", batch(removed([1], **fields)), seq=2)
    assert seen(routed)["a"][2] == 0
    routed.validate()


def test_without_one_what_workers_say_of_a_shared_store_is_dropped_and_counted() -> None:
    routed = router()
    routed.event_sink.apply_events("a", batch(whole(12, medium="EXTERNAL")), seq=0)
    assert seen(routed)["a"] == (0.0, 0, 0)
    assert routed.stats().dropped["shared-pool"] == 1


def test_loads_count_by_the_computing_they_save() -> None:
    now = [0.0]
    routed = router(clock=lambda: now[0], load_ms_per_token={"cpu": 0.125, "disk": 0.75})
    routed.shared_caches.add("store", load_ms_per_token=0.5)
    routed.event_sink.apply_events("a", batch(whole(4)), seq=0)
    chained = stored(range(5, 9), LONG[64:128], parent=4, medium="cpu")
    routed.event_sink.apply_events(
        "a", batch(chained, stored(range(9, 13), LONG[128:192], parent=8, medium="disk")), seq=1
    )
    assert seen(routed)["a"] == (8.4, 12, 0)
    decision = routed.select_worker(tokens=range(10_000, 11_000))
    now[0] = 1.0
    decision.on_first_token()
    decision.on_complete()
    assert seen(routed) == {"a": (8.5, 12, 0), "b": (0.0, 0, 0)}
    routed.event_sink.apply_events("store", batch(whole(12)), seq=0)
    assert seen(routed) == {"a": (9.5, 12, 0), "b": (6.0, 0, 12)}
    routed.shared_caches.add("store", load_ms_per_token=0.5, startup_ms=48.0)
    assert seen(routed) == {"a": (8.5, 12, 0), "b": (3.0, 0, 12)}
    routed.shared_caches.add("store", load_ms_per_token=1.5)
    assert seen(routed) == {"a": (8.5, 12, 0), "b": (0.0, 0, 12)}


def test_blocks_expire_and_removal_forgets_them() -> None:
    now = [0.0]
    routed = router(clock=lambda: now[0])
    routed.shared_caches.add("store", ttl_s=10)
    routed.event_sink.apply_events("store", batch(whole(12)), seq=0)
    now[0] = 9.0
    assert seen(routed)["b"][2] == 12
    now[0] = 11.0
    assert seen(routed)["b"][2] == 0
    assert routed.shared_caches.blocks() == {"store": 0}
    routed.event_sink.apply_events("store", batch(whole(3)), seq=1)
    assert routed.shared_caches.blocks() == {"store": 3}
    assert routed.shared_caches.remove("store")
    assert not routed.shared_caches.remove("store")
    assert (routed.shared_caches.blocks(), seen(routed)["b"][2]) == ({}, 0)
    with pytest.raises(cachelb.UnknownWorkerError, match="store"):
        routed.event_sink.apply_events("store", batch(whole(3)), seq=2)
    routed.validate()


FULL: dict[str, Any] = {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}
STATE: dict[str, Any] = {"group_idx": 1, "kv_cache_spec_kind": "mamba"}


def hybrid(place: str, ends: list[int]) -> cachelb.Router[str]:
    """Route over a worker with states behind 2 and 4 blocks, and a cache with 8 blocks and states behind `ends`."""
    routed = router()
    routed.shared_caches.add("store")
    states = [stored([end], LONG[: 16 * end], **STATE) for end in (2, 4)]
    routed.event_sink.apply_events("a", batch(whole(4, **FULL), *states), seq=0)
    where: dict[str, Any] = {"medium": "EXTERNAL"} if place == "worker" else {}
    states = [stored([end], LONG[: 16 * end], **STATE, **where) for end in ends]
    key, seq = ("a", 1) if place == "worker" else ("store", 0)
    routed.event_sink.apply_events(key, batch(whole(8, **FULL, **where), *states), seq=seq)
    assert routed.shared_caches.blocks() == {"store": 8}
    return routed


@pytest.mark.parametrize(
    ("place", "ends", "expected"),
    [
        ("own", [], 0),
        ("own", [8], 4),
        ("own", [2, 6, 8], 4),
        ("own", [6], 2),
        ("own", [3], 0),
        ("worker", [], 0),
        ("worker", [6], 2),
    ],
)
def test_a_hybrid_worker_resumes_where_all_groups_of_the_cache_can(place: str, ends: list[int], expected: int) -> None:
    routed = hybrid(place, ends)
    assert seen(routed)["a"] == (round(4 + 0.6 * expected, 6), 4, expected)
    decision = routed.select_worker(tokens=LONG, among=["a"])
    assert decision.matched_tokens == 16 * (4 + expected)
    decision.on_complete(cached_tokens=0)
    (record,) = routed.records.recent(1)
    assert (record.matched_tokens, record.shared_tokens) == (16 * (4 + expected), 16 * expected)
    assert routed.stats().funnel.selected_shared_tokens == 16 * expected
    routed.validate()


def test_only_its_workers_read_and_feed_it() -> None:
    routed = router()
    routed.shared_caches.add("store", media=["cpu"], workers=["b", "c"])
    routed.event_sink.apply_events("a", batch(whole(2), whole(4, medium="cpu")), seq=0)
    routed.event_sink.apply_events("a", batch(whole(12, medium="EXTERNAL")), seq=1)
    assert routed.stats().dropped["shared-pool"] == 1
    assert (routed.shared_caches.blocks(), seen(routed)) == ({"store": 0}, {"a": (3.6, 4, 0), "b": (0.0, 0, 0)})
    routed.event_sink.apply_events("b", batch(whole(12, medium="cpu")), seq=0)
    expected = {"a": (3.6, 4, 0), "b": (7.2, 0, 12)}
    assert (routed.shared_caches.blocks(), seen(routed)) == ({"store": 12}, expected)
    # Slots are used again, by keys that are listed and by such that are not.
    for key, read in (("c", 12), ("d", 0)):
        routed.remove_worker("b")
        routed.add_worker(key)
        assert seen(routed)[key][2] == read
        routed.remove_worker(key)
        routed.add_worker("b")
        assert seen(routed) == expected
    routed.add_worker("b", dp_size=2)
    assert {key: read for key, (*_, read) in seen(routed).items()} == {"a": 0, "b#0": 12, "b#1": 12}
    routed.add_worker("b")
    routed.shared_caches.add("store", media=["cpu"], workers=["a"])
    assert [read for *_, read in seen(routed).values()] == [8, 0]
    routed.shared_caches.add("store", media=["cpu"])
    assert [read for *_, read in seen(routed).values()] == [8, 12]
    routed.validate()


def test_each_model_has_its_own() -> None:
    routed = router(models={"m": 16})
    routed.shared_caches.add("first")
    routed.shared_caches.add("second", model="m")
    routed.event_sink.apply_events("second", batch(whole(12)), seq=0)
    assert seen(routed)["a"][2] == 0
    assert seen(routed, model="m")["a"][2] == 12
    assert routed.shared_caches.blocks() == {"first": 0, "second": 12}


@pytest.mark.parametrize(
    ("name", "options", "error", "text"),
    [
        ("a", {}, ValueError, "is the key of a worker; a shared cache needs a name of its own"),
        ("second", {}, ValueError, r'the model has the shared cache "store"; remove it from `shared_caches` first'),
        ("store", {"model": "m"}, ValueError, '"store" is the shared cache of another model'),
        ("x", {"model": "other"}, ValueError, 'model "other" has no index of its own; name it in `models`'),
        ("x", {"model": "m", "media": ["gpu"]}, ValueError, 'media must be of "cpu" and "disk", got "gpu"'),
        ("x", {"model": "m", "load_ms_per_token": -1}, ValueError, "load_ms_per_token"),
        ("x", {"model": "m", "startup_ms": float("inf")}, ValueError, "startup_ms"),
        ("x", {"model": "m", "ttl_s": 0}, ValueError, "ttl_s"),
        ("x", {"model": "m", "kv_blocks": 0}, ValueError, "kv_blocks"),
        ("x", {"model": "m", "media": [3]}, TypeError, "media|str"),
        ("x", {"model": "m", "workers": []}, ValueError, "workers is empty"),
        ("x", {"model": "m", "workers": "a"}, TypeError, "workers must be several, got one str"),
        ("x", {"model": "m", "workers": [3]}, TypeError, r"workers\[0\] is a int"),
        ("", {"model": "m"}, ValueError, "must not be empty"),
        (3, {"model": "m"}, TypeError, "name"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    name: Any, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    routed = router(models={"m": 16})
    routed.shared_caches.add("store")
    with pytest.raises(error, match=text):
        routed.shared_caches.add(name, **options)
    with pytest.raises(ValueError, match=r'"store" is a shared cache; remove it from `shared_caches` first'):
        routed.add_worker("store")
    assert (routed.shared_caches.blocks(), routed.keys()) == ({"store": 0}, ["a", "b"])
    routed.validate()


def test_no_key_of_a_worker_leads_to_one() -> None:
    routed = router()
    routed.shared_caches.add("store")
    with pytest.raises(ValueError, match="must not begin with a null character"):
        routed.add_worker("\0store")
    routed.event_sink.apply_events("store", batch(whole(3)), seq=0)
    assert seen(routed)["a"][2] == 3
    routed.validate()


@pytest.mark.parametrize("medium", ["cpu", "disk"])
def test_a_startup_needs_the_time_of_a_token(medium: str) -> None:
    with pytest.raises(ValueError, match=f'load_startup_ms of "{medium}" needs load_ms_per_token of it'):
        router(load_startup_ms={medium: 1.0})


def test_a_snapshot_holds_workers_only() -> None:
    routed = router(secret=SECRET)
    routed.shared_caches.add("store")
    routed.event_sink.apply_events("store", batch(whole(12)), seq=0)
    again = router(secret=SECRET)
    assert again.shared_state.restore(routed.shared_state.snapshot()).blocks == 0
    assert seen(again)["a"] == (0.0, 0, 0)


def test_the_child_of_a_fork_has_it_too() -> None:
    routed = router()
    routed.shared_caches.add("store", media=["cpu"], workers=["b"])

    def child() -> None:
        routed.event_sink.apply_events("b", batch(blocks(6, medium="cpu")), seq=0)
        assert routed.shared_caches.blocks() == {"store": 6}
        assert [read for *_, read in seen(routed, tokens=PROMPT).values()] == [0, 6]

    in_child(child)
