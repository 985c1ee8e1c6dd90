"""KV events applied by hand: the router's view of its workers then, and its statistics."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import pytest
from tests.library.router.test_router_fork import in_child
from tests.threads import beside

import cachelb
from cachelb.metrics.families import families
from cachelb.stats.events import KvEventStats
from cachelb_fakes.events import cleared, encode_batch, removed, stored

PROMPT = list(range(100))
"""Six full blocks of 16 tokens."""

OTHER = list(range(1000, 1100))


def router(*workers: str, **options: Any) -> cachelb.Router[str]:
    return cachelb.Router(workers or ("a", "b"), policy="kv-aware", seed=1, **options)


def blocks(count: int, **fields: Any) -> dict[str, Any]:
    return stored(range(1, count + 1), PROMPT[: 16 * count], **fields)


def batch(*events: dict[str, Any], ts: float = 1.0, dp_rank: int | None = None) -> bytes:
    return encode_batch(events, ts=ts, dp_rank=dp_rank)


def matched(routed: cachelb.Router[str], **request: Any) -> dict[str, int]:
    """Return the matched tokens of every worker."""
    seen = routed.explain(tokens=PROMPT, **request)
    return {worker.key: int(worker.matched_tokens) for worker in seen.candidates}


def events_of(routed: cachelb.Router[str], worker: int = 0) -> KvEventStats:
    told = routed.stats().workers[worker].kv_events
    assert told is not None
    return told


def test_stored_blocks_are_matched_and_removed_ones_are_not() -> None:
    routed = router()
    assert routed.event_sink.apply_events("a", batch(blocks(4)), seq=0) == 1
    assert matched(routed) == {"a": 64, "b": 0}
    assert routed.event_sink.apply_events("a", batch(removed([3]), removed([99])), seq=1) == 2
    assert matched(routed) == {"a": 32, "b": 0}
    routed.event_sink.apply_events("a", batch(cleared()), seq=2)
    assert matched(routed) == {"a": 0, "b": 0}
    told = events_of(routed)
    assert told.events == {("store", "gpu"): 1, ("remove", "gpu"): 2, ("clear", "any"): 1}
    assert (told.unknown_removals, told.engine_block_size, told.state) == (1, 16, "live")
    routed.validate()


def test_the_first_message_replaces_what_decisions_brought() -> None:
    routed = router("a")
    routed.select_worker(tokens=PROMPT).on_complete()
    assert matched(routed) == {"a": 96}
    routed.event_sink.apply_events("a", batch(stored([7], range(500, 516))), seq=0)
    assert matched(routed) == {"a": 0}
    assert routed.stats().workers[0].index_blocks == {"gpu": 1}


def test_a_worker_without_events_is_approximated_beside_one_with_events() -> None:
    routed = router()
    routed.select_worker(tokens=PROMPT, among=["b"]).on_complete()
    routed.event_sink.apply_events("a", batch(blocks(2)), seq=0)
    assert matched(routed) == {"a": 32, "b": 96}


def doubt(routed: cachelb.Router[str]) -> tuple[dict[str, int], dict[str, int]]:
    """Count the confirmed blocks of the prompt on the first worker, and the doubtful ones."""
    view = routed.explain(tokens=PROMPT).candidates[0]
    return view.confirmed_blocks, view.doubtful_blocks


def test_a_lost_message_makes_doubtful_what_was_before_until_events_settle_it() -> None:
    routed = router()
    routed.event_sink.apply_events("a", batch(blocks(4)), seq=0)
    assert routed.event_sink.apply_events("a", batch(stored([7], PROMPT[:16]), ts=3.0), seq=2) == 1
    assert matched(routed) == {"a": 64, "b": 0}
    assert doubt(routed) == ({"gpu": 1}, {"gpu": 3})
    told = events_of(routed)
    assert (told.gaps, told.resyncs, told.state, told.doubted_blocks) == (1, 1, "degraded", 4)
    routed.event_sink.apply_events("a", batch(removed([4]), ts=3.5), seq=3)
    assert doubt(routed) == ({"gpu": 1}, {"gpu": 2})
    routed.event_sink.apply_events("a", batch(stored([2], PROMPT[16:32], parent=7), ts=3.6), seq=4)
    assert doubt(routed) == ({"gpu": 2}, {"gpu": 1})
    routed.event_sink.apply_events("a", batch(cleared(), ts=4.0), seq=5)
    assert (events_of(routed).state, matched(routed)) == ("live", {"a": 0, "b": 0})


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x92\x01", bytes(100)], ids=["empty", "no type", "cut", "zeros"])
def test_what_cannot_be_read_is_a_lost_message_and_no_error(payload: bytes) -> None:
    routed = router()
    routed.event_sink.apply_events("a", batch(blocks(4)), seq=0)
    assert routed.event_sink.apply_events("a", payload, seq=1) == 0
    assert doubt(routed) == ({}, {"gpu": 4})
    assert routed.stats().dropped["undecodable"] == 1
    assert routed.event_sink.apply_events("a", batch(blocks(2), ts=2.0), seq=2) == 1
    assert matched(routed) == {"a": 64, "b": 0}
    assert doubt(routed) == ({"gpu": 2}, {"gpu": 2})


def test_ranks_have_caches_of_their_own() -> None:
    routed: cachelb.Router[str] = router("only")
    routed.add_worker("only", dp_size=2)
    routed.event_sink.apply_events("only", batch(blocks(2)), seq=0, dp_rank=0)
    routed.event_sink.apply_events("only", batch(blocks(4), dp_rank=1), seq=0, dp_rank=0)
    assert matched(routed) == {"only#0": 32, "only#1": 64}, "the rank that a message names comes first"
    assert routed.event_sink.apply_events("only", batch(blocks(1), dp_rank=2), seq=1, dp_rank=0) == 0
    assert routed.event_sink.apply_events("only", batch(blocks(1)), seq=1) == 0
    assert routed.stats().dropped["unknown-rank"] == 2
    assert routed.event_sink.apply_events("only", batch(removed([2]), ts=2.0), seq=2, dp_rank=0) == 1, (
        "the stream goes on"
    )
    with pytest.raises(ValueError, match='dp_rank is 2, but worker "only" has dp_size=2'):
        routed.event_sink.apply_events("only", b"", dp_rank=2)


def test_names_mean_nothing_beyond_their_stream() -> None:
    routed = router()
    routed.add_worker("ranked", dp_size=2)
    prompts = {("a", None): PROMPT, ("b", None): OTHER, ("ranked", 0): PROMPT, ("ranked", 1): OTHER}
    for start in (0, 16):
        for (worker, rank), prompt in prompts.items():
            event = stored([start], prompt[start : start + 16], parent=0 if start else None)
            routed.event_sink.apply_events(worker, batch(event, ts=start + 1.0), seq=start // 16, dp_rank=rank)
    assert matched(routed) == {"a": 32, "b": 0, "ranked#0": 32, "ranked#1": 0}
    routed.event_sink.apply_events("b", batch(removed([0]), ts=50.0), seq=2)
    routed.event_sink.apply_events("ranked", batch(removed([0]), ts=50.0), seq=2, dp_rank=1)
    assert matched(routed) == {"a": 32, "b": 0, "ranked#0": 32, "ranked#1": 0}
    routed.event_sink.apply_events("ranked", batch(removed([16]), ts=60.0), seq=2, dp_rank=0)
    assert matched(routed)["ranked#0"] == 16


def test_a_restart_of_one_rank_leaves_the_others() -> None:
    routed: cachelb.Router[str] = router("only")
    routed.add_worker("only", dp_size=2)
    for rank in (0, 1):
        routed.event_sink.apply_events("only", batch(blocks(4)), seq=0, dp_rank=rank)
    routed.event_sink.apply_events("only", batch(blocks(1), ts=50.0), seq=0, dp_rank=0)
    assert matched(routed) == {"only#0": 16, "only#1": 64}
    assert routed.stats().kv_restarts == 1
    routed.event_sink.apply_events("only", batch(cleared(), ts=60.0), seq=1, dp_rank=1)
    assert matched(routed) == {"only#0": 16, "only#1": 0}


def test_bad_arguments_are_named() -> None:
    routed = router()
    with pytest.raises(cachelb.UnknownWorkerError, match='"x" is not registered'):
        routed.event_sink.apply_events("x", b"")
    with pytest.raises(TypeError, match="payload must be bytes, bytearray or memoryview, got str"):
        routed.event_sink.apply_events("a", "text")  # type: ignore[arg-type]
    for seq in (-1, 2**64 - 1, 2**70):
        with pytest.raises(ValueError, match="seq"):
            routed.event_sink.apply_events("a", b"", seq=seq)
    payload = batch(blocks(1))
    assert routed.event_sink.apply_events("a", bytearray(payload), seq=0) == 1
    assert routed.event_sink.apply_events("a", memoryview(batch(blocks(1), ts=2.0)), seq=1) == 1


def test_a_removed_worker_takes_its_events_with_it() -> None:
    routed = router()
    routed.event_sink.apply_events("a", batch(blocks(4)), seq=0)
    routed.event_sink.apply_events("a", batch(blocks(1), ts=3.0), seq=5)
    routed.remove_worker("a")
    assert routed.stats().index_blocks == 0
    with pytest.raises(cachelb.UnknownWorkerError):
        routed.event_sink.apply_events("a", batch(blocks(4)), seq=6)
    series = {family.name: family.rows for family in families(routed.stats())}
    assert series["kv_events"] == []
    assert series["kv_gaps"] == [((), 1)], "what happened stays counted"
    routed.add_worker("a")
    assert routed.stats().workers[-1].kv_events is None
    assert matched(routed)["a"] == 0


def test_a_cache_reset_forgets_names_and_keeps_the_order() -> None:
    routed = router()
    routed.event_sink.apply_events("a", batch(blocks(4)), seq=0)
    routed.load_sink.reset_cache("a")
    assert matched(routed)["a"] == 0
    assert routed.event_sink.apply_events("a", batch(stored([5], range(64, 80), parent=4), ts=2.0), seq=1) == 0
    assert events_of(routed).parked == 1, "its parent went with the rest"
    assert events_of(routed).gaps == 0
    routed.event_sink.apply_events("a", batch(cleared(), blocks(2), ts=3.0), seq=2)
    assert matched(routed)["a"] == 32
    routed.validate()


def test_events_speak_of_the_first_model_of_a_worker() -> None:
    routed = router("b", models={"m": 16, "n": 16})
    routed.add_worker("a", models=["m", "n"])
    routed.event_sink.apply_events("a", batch(blocks(2)), seq=0)
    assert matched(routed, model="m") == {"a": 32, "b": 0}
    assert matched(routed, model="n") == {"a": 0, "b": 0}
    routed.add_worker("a", models=["n", "m"])
    assert matched(routed, model="m") == {"a": 0, "b": 0}
    routed.event_sink.apply_events("a", batch(blocks(3)), seq=0)
    assert matched(routed, model="n") == {"a": 48, "b": 0}


def test_identity_separates_what_events_say() -> None:
    routed = router("a")
    salted = stored([11, 12], PROMPT[:32], extra_keys=[["salt"], None])
    adapted = stored([21], PROMPT[:16], lora_name="la", extra_keys=[["la"]])
    routed.event_sink.apply_events("a", batch(salted, adapted), seq=0)
    assert matched(routed) == {"a": 0}
    assert matched(routed, cache_salt="salt") == {"a": 32}
    assert matched(routed, lora="la") == {"a": 16}


def test_undeclared_models_of_engines_with_events() -> None:
    routed = router("a")
    adapted = stored([21], PROMPT[:16], lora_name="la", extra_keys=[["la"]])
    routed.event_sink.apply_events("a", batch(blocks(3), adapted), seq=0)
    assert matched(routed, model="la") == {"a": 16}, "an adapter"
    assert matched(routed, model="other") == {"a": 48}, "asking binds nothing"
    routed.select_worker(tokens=[], model="theirs").cancel()
    assert matched(routed, model="theirs") == {"a": 48}
    assert matched(routed, model="other") == {"a": 0}
    assert matched(routed) == {"a": 48}


def test_client_that_names_another_model_first_takes_no_credit_from_others() -> None:
    routed = router("a")
    routed.event_sink.apply_events("a", batch(blocks(3)), seq=0)
    routed.select_worker(tokens=[], model="a mistake").cancel()
    for _ in range(2):
        routed.select_worker(tokens=[], model="theirs").cancel()
    assert matched(routed, model="theirs") == {"a": 48}
    assert matched(routed, model="a mistake") == {"a": 0}


def test_adapter_that_was_asked_for_before_its_first_event_makes_room_for_the_model() -> None:
    routed = router("a")
    routed.event_sink.apply_events("a", batch(blocks(3)), seq=0)
    for _ in range(9):
        routed.select_worker(tokens=[], model="la").cancel()
    adapted = stored([21], PROMPT[:16], lora_name="la", extra_keys=[["la"]])
    routed.event_sink.apply_events("a", batch(adapted), seq=1)
    routed.select_worker(tokens=[], model="theirs").cancel()
    assert (matched(routed, model="theirs"), matched(routed, model="la")) == ({"a": 48}, {"a": 16})


def test_undeclared_models_without_events_are_kept_apart() -> None:
    routed = router("a")
    routed.select_worker(tokens=PROMPT, model="one").on_complete()
    assert [matched(routed, model=model)["a"] for model in ("one", "two")] == [96, 0]


def test_metrics_tell_what_events_say() -> None:
    routed = router()
    routed.event_sink.apply_events("a", batch(blocks(4), stored([1], PROMPT[:16], medium="CPU"), ts=time.time()), seq=0)
    routed.select_worker(tokens=PROMPT, among=["b"]).on_complete()
    series = {family.name: family.rows for family in families(routed.stats())}
    assert sorted(series["index_blocks"]) == [
        (("a", "", "cpu", "confirmed"), 1),
        (("a", "", "gpu", "confirmed"), 4),
        (("b", "", "gpu", "speculative"), 6),
    ]
    assert sorted(series["kv_events"]) == [(("a", "", "store", "cpu"), 1), (("a", "", "store", "gpu"), 1)]
    ((labels, lag),) = series["kv_event_lag_seconds"]
    assert labels == ("a", "")
    assert 0 <= lag < 30
    assert series["kv_stream_state"] == [(("a", "", "live"), 1)]
    assert dict(series["kv_replays"]) == {("complete",): 0, ("short",): 0, ("failed",): 0}


class TestAsASource:
    """The half that transports call."""

    def test_the_ranks_of_one_endpoint_are_told_together(self) -> None:
        routed: cachelb.Router[str] = router("only")
        routed.add_worker("only", dp_size=2)
        assert routed.event_sink.connected("only", 0, True) == 0
        assert routed.event_sink.live("only", 0, 0, batch(blocks(1), dp_rank=0)) == (0, None)
        assert routed.event_sink.live("only", 0, 0, batch(blocks(2), dp_rank=1)) == (0, 0)
        assert routed.event_sink.replay_ended("only", 0, True) is None
        assert matched(routed) == {"only#0": 16, "only#1": 32}


def test_events_from_several_threads_while_workers_come_and_go() -> None:
    routed = router("a", "b", "c")
    stop = threading.Event()

    def feed(worker: str) -> None:
        ts = 0.0
        while not stop.is_set():
            for event in (blocks(6), removed([6, 5]), cleared()):
                ts += 1
                with contextlib.suppress(cachelb.UnknownWorkerError):
                    routed.event_sink.apply_events(worker, batch(event, ts=ts))

    with beside(feed, "abc", stop):
        for _ in range(100):
            routed.remove_worker("c")
            routed.select_worker(tokens=PROMPT).on_complete()
            routed.add_worker("c")
            routed.load_sink.reset_cache("b")
            routed.stats()
    routed.validate()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_child_of_a_fork_starts_its_feeds_anew() -> None:
    routed = router()
    routed.event_sink.apply_events("a", batch(blocks(4)), seq=0)

    def check() -> None:
        assert routed.stats().workers[0].kv_events is None
        assert matched(routed) == {"a": 0, "b": 0}
        assert routed.event_sink.apply_events("a", batch(blocks(1)), seq=0) == 1
        assert matched(routed)["a"] == 16

    in_child(check)
    assert matched(routed) == {"a": 64, "b": 0}
