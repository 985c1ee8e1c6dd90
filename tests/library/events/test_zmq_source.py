"""The event source over real sockets: what an engine publishes reaches the sink, each batch once and in order."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator

import pytest
from tests.models.kv_sink import RecordingSink
from tests.models.kv_streams import W, connected, give_up_after, publish, receiving, relayed, stream_of
from tests.waiting import wait_until

from cachelb import UnknownWorkerError
from cachelb.events import Endpoint, ZmqSource
from cachelb_fakes import EventPublisher


@contextlib.contextmanager
def through_a_relay(publisher: EventPublisher) -> Iterator[tuple[RecordingSink, ZmqSource]]:
    with relayed(publisher) as (_, sink, source):
        yield sink, source


Follow = Callable[[EventPublisher], contextlib.AbstractContextManager[tuple[RecordingSink, ZmqSource]]]


@pytest.fixture(params=[connected, through_a_relay], ids=["direct", "relayed"])
def follow(request: pytest.FixtureRequest) -> Follow:
    """The way to a worker's events: a gateway behind a relay receives what one at the engine does."""
    found: Follow = request.param
    return found


def test_a_gap_is_filled_in_order_while_later_messages_come(follow: Follow) -> None:
    with EventPublisher() as publisher, follow(publisher) as (sink, source):
        before = source.stats().streams[W, None].last_error  # a relay may have been asked before it was connected
        publish(publisher, 0, 1)
        sink.wait_applied([0, 1], W)
        publisher.hold_replay()
        publisher.drop(2)
        publish(publisher, 2, 3, 4, 5)
        publisher.wait_for(lambda: publisher.replay_requests[1:] == [1])
        publish(publisher, 6)
        sink.wait_for(lambda: 6 in (sink.of(W).waiting or {}))
        assert source.stats().streams[W, None].state == "replaying"
        publisher.release_replay()
        sink.wait_applied([0, 1, 2, 3, 4, 5, 6], W)
        assert sink.of(W).asked == [0, 1]
        stats = source.stats().streams[W, None]
        assert (stats.replays, stats.replays_failed, stats.malformed, stats.last_error) == (2, 0, 0, before)


def test_a_history_longer_than_the_queue_of_a_router_socket_comes_complete(follow: Follow) -> None:
    with EventPublisher() as publisher:
        publish(publisher, *range(6000))
        with follow(publisher) as (sink, _):
            assert sink.of(W).applied == list(range(6000))
            assert sink.of(W).asked == [0], "asking again for what the engine's socket dropped is not the sink's affair"


@pytest.mark.parametrize("replay", [True, False], ids=["no answer", "no replay socket"])
def test_a_stream_that_cannot_be_replayed_goes_on_behind_the_gap(follow: Follow, *, replay: bool) -> None:
    with EventPublisher(replay=replay) as publisher, follow(publisher) as (sink, source):
        publisher.mute_replay()
        give_up_after(source, 1.0)
        publish(publisher, 0)
        sink.wait_applied([0], W)
        publisher.drop()
        publish(publisher, 1, 2)
        sink.wait_applied([0, "clear", 2], W)
        publish(publisher, 3)
        sink.wait_applied([0, "clear", 2, 3], W)
        assert sink.of(W).told[-1] == "ended False"
        stats = source.stats().streams[W, None]
        assert stats.replays_failed == replay
        assert stats.last_error == ("no replay" if replay else None) or follow is through_a_relay


def test_a_replay_that_was_answered_while_the_router_was_busy_is_no_failure() -> None:
    class Busy(RecordingSink):
        def live(self, key: str, dp_rank: int | None, seq: int | None, payload: bytes) -> tuple[int, int | None]:
            if key == "other":
                publisher.release_replay()
                publisher.flush()
                replay = stream_of(source)._replay
                assert replay is not None
                dealer = replay._socket
                assert dealer is not None
                wait_until(lambda: dealer.poll(0) != 0)
                replay.deadline_s = time.monotonic()
            return super().live(key, dp_rank, seq, payload)

    with EventPublisher() as publisher, EventPublisher(replay=False) as other:
        publish(publisher, 0, 1)
        publisher.hold_replay()
        sink = Busy({"other": 1, W: 1})
        endpoints = {W: publisher.endpoint, "other": other.endpoint}
        with receiving(sink, endpoints) as source:
            publisher.wait_for(lambda: publisher.replay_requests)
            other.wait_for(lambda: other.subscribers == 1)
            publish(other, 0)
            sink.wait_for(lambda: any(told.startswith("ended") for told in sink.of(W).told))
            assert (sink.of(W).told, sink.of(W).applied) == (["connected True", "ended True"], [0, 1])
            assert source.stats().streams[W, None].replays_failed == 0


def test_a_silent_replay_is_logged_once_until_it_answers_again(caplog: pytest.LogCaptureFixture) -> None:
    def warnings() -> int:
        return sum("does not replay" in record.message for record in caplog.records)

    with EventPublisher() as publisher, connected(publisher) as (sink, source):
        ended = 1

        def all_ended() -> bool:
            return sum(told.startswith("ended") for told in sink.of(W).told) == ended

        publish(publisher, 0)
        for muted, expected in ((True, 1), (True, 1), (False, 1), (True, 2)):
            publisher.mute_replay(muted=muted)
            give_up_after(source, 0.5 if muted else 60.0)
            publisher.drop()
            publish(publisher, 1, 1)
            ended += 1
            sink.wait_for(all_ended)
            assert warnings() == expected
        assert source.stats().streams[W, None].replays_failed == 3


def test_a_restart_begins_the_stream_anew(follow: Follow) -> None:
    with EventPublisher() as publisher, follow(publisher) as (sink, _):
        publish(publisher, 0, 1, 2)
        sink.wait_applied([0, 1, 2], W)
        publisher.restart()
        publish(publisher, 10, 11)
        sink.wait_applied([0, 1, 2, "clear", 10, 11], W)
        told = ["connected True", "ended True", "disconnected", "connected True", "ended True", "ended True"]
        sink.wait_for(lambda: (sink.of(W).told, sink.of(W).asked) == (told, [0, 2, 0]))


def test_what_was_missed_while_disconnected_is_replayed(follow: Follow) -> None:
    with EventPublisher() as publisher, follow(publisher) as (sink, source):
        publish(publisher, 0, 1)
        sink.wait_applied([0, 1], W)
        publisher.stop()
        sink.wait_for(lambda: not sink.of(W).connected)
        assert source.stats().streams[W, None].state == "disconnected"
        publish(publisher, 2, 3)
        publisher.start()
        sink.wait_applied([0, 1, 2, 3], W)
        assert sink.of(W).asked == [0, 1]
        assert source.stats().streams[W, None].connections == 2
        publish(publisher, 4)
        sink.wait_applied([0, 1, 2, 3, 4], W)


def test_an_engine_that_connects_finds_the_source_listening(follow: Follow) -> None:
    with EventPublisher() as other:
        address = other.endpoint.address
        other.stop()
        with EventPublisher(connect=address) as publisher:
            assert publisher.endpoint.bind
            publish(publisher, 0, 1)
            with follow(publisher) as (sink, _):
                publish(publisher, 2, 3)
                sink.wait_applied([0, 1, 2, 3], W)
                publisher.restart()
                publisher.wait_for(lambda: publisher.subscribers == 1)
                publish(publisher, 10)
                sink.wait_applied([0, 1, 2, 3, "clear", 10], W)


def test_messages_without_numbers_are_applied_as_they_come(follow: Follow) -> None:
    publisher = EventPublisher(numbered=False, replay=False, dp_rank=None, form="array")
    with publisher, follow(publisher) as (sink, source):
        publisher.drop()
        publish(publisher, 0, 1, 2)
        sink.wait_applied([1, 2], W)
        assert source.stats().messages == 2


def test_only_topics_with_the_prefix_are_received() -> None:
    with EventPublisher(topic="kv-events@w0") as wanted, EventPublisher(topic="other") as unwanted:
        sink = RecordingSink({"a": 1, "b": 1})
        endpoints = {"a": wanted.endpoint, "b": Endpoint(unwanted.endpoint.address)}
        with receiving(sink, endpoints, topic_filter="kv-events@") as source:
            wanted.wait_for(lambda: wanted.subscribers == 1)
            unwanted.wait_for(lambda: unwanted.subscribers == 1)
            publish(unwanted, 0)
            publish(wanted, 0)
            sink.wait_applied([0], "a")
            assert source.stats().streams["b", None].messages == 0


def test_malformed_messages_between_good_ones_do_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    with EventPublisher() as publisher, connected(publisher) as (sink, source):
        publish(publisher, 0)
        publisher.publish_frames(b"one")
        publisher.publish_frames(b"topic", b"number", b"payload")
        publisher.publish_frames(b"topic", b"\xff" * 8, b"payload")
        publisher.publish_frames(b"1", b"2", b"3", b"secret-frame")
        publisher.publish_payload(b"\xc1secret-payload")
        publish(publisher, 2)
        sink.wait_applied([0, 2], W)
        assert sink.of(W).unreadable == 1, "what a payload holds is the sink's to judge"
        stats = source.stats()
        assert (stats.messages, stats.malformed, stats.streams[W, None].last_error) == (7, 4, "malformed message")
        assert sum("not in the format of an engine" in record.message for record in caplog.records) == 1
        assert "secret" not in caplog.text


def test_a_sink_that_fails_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(RecordingSink):
        def live(self, key: str, dp_rank: int | None, seq: int | None, payload: bytes) -> tuple[int, int | None]:
            if seq is not None and seq in {1, 2, 3}:
                raise RuntimeError("broken") if seq < 3 else UnknownWorkerError("gone")
            return super().live(key, dp_rank, seq, payload)

    with EventPublisher() as publisher, caplog.at_level(logging.ERROR):
        sink = Failing({W: 1})
        with receiving(sink, {W: publisher.endpoint}) as source:
            publisher.wait_for(lambda: publisher.subscribers == 1)
            sink.wait_for(lambda: "ended True" in sink.of(W).told)
            publish(publisher, 0, 1, 2, 3, 4)
            sink.wait_applied([0, 1, 2, 3, 4], W)
            assert source.stats().streams[W, None].refused == 2, "a worker removed in between is no failure"
    assert [record.message for record in caplog.records] == [f"the router fails on the event stream of {W}"]
