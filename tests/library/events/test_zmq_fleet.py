"""Event streams of a fleet: workers come and go, ranks have their ports, one thread serves all, nothing is left."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys

import pytest
from tests.http_client import complete
from tests.library.router.test_router_fork import in_child
from tests.models.kv_sink import RecordingSink
from tests.models.kv_streams import RANKS, W, connected, nothing_left, publish, receiving, threads, three_ranks
from tests.waiting import wait_until

from cachelb.events import Endpoint, ZmqSource
from cachelb.events.discovery import parse_page
from cachelb.events.zmq.stream import Stream
from cachelb_fakes import EventPublisher, FakeFleet
from cachelb_gateway.relay import Relay


def test_workers_are_followed_as_they_come_and_go() -> None:
    with EventPublisher() as one, EventPublisher() as two:
        sink = RecordingSink({"one": 1})
        with receiving(sink, {"one": one.endpoint, "two": two.endpoint}) as source:
            sink.wait_for(lambda: "ended True" in sink.of("one").told)
            publish(one, 1)
            sink.wait_applied([1], "one")
            sink.workers["two"] = 1
            publish(two, 2)
            sink.wait_applied([2], "two")
            del sink.workers["one"]
            one.wait_for(lambda: one.subscribers == 0)
            wait_until(lambda: list(source.stats().streams) == [("two", None)])
            assert source.stats().messages >= 1, "what a removed worker sent stays counted"
            publish(two, 3)
            sink.wait_applied([2, 3], "two")
            sink.workers["one"] = 1
            one.wait_for(lambda: one.subscribers == 1)


def test_what_was_received_stays_counted_while_its_stream_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    counted, close = [], Stream.close

    def counted_first(stream: Stream) -> None:
        counted.append(source.stats().messages)
        close(stream)

    with EventPublisher() as one:
        sink = RecordingSink({"one": 1})
        with receiving(sink, {"one": one.endpoint}) as source:
            sink.wait_for(lambda: "ended True" in sink.of("one").told)
            publish(one, 1)
            wait_until(lambda: source.stats().messages == 1)
            monkeypatch.setattr(Stream, "close", counted_first)
            del sink.workers["one"]
            wait_until(lambda: not source.stats().streams)
    assert counted == [1]


@pytest.mark.parametrize("relayed", [False, True], ids=["direct", "relayed"])
def test_ranks_have_the_ports_after_the_first_one(relayed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = RecordingSink({W: 3})
    with three_ranks(monkeypatch) as ranks, contextlib.ExitStack() as stack:
        options = RANKS
        if relayed:
            relay = stack.enter_context(Relay("tcp://127.0.0.1:*", workers={W: 3}, **RANKS))
            options = {"relay": relay.address}
        source = stack.enter_context(receiving(sink, {}, **options))
        for rank, publisher in enumerate(ranks):
            publish(publisher, 10 + rank, 20 + rank)
        for rank in range(3):
            sink.wait_applied([10 + rank, 20 + rank], W, rank)
        assert sorted(source.stats().streams) == [(W, 0), (W, 1), (W, 2)]
        if not relayed:
            sink.workers[W] = 2
            ranks[2].wait_for(lambda: ranks[2].subscribers == 0)
            wait_until(lambda: sorted(source.stats().streams) == [(W, 0), (W, 1)])


def test_fifty_workers_share_one_thread() -> None:
    with contextlib.ExitStack() as stack:
        publishers = {f"http://gpu{i}:8000": stack.enter_context(EventPublisher()) for i in range(50)}
        sink = RecordingSink(dict.fromkeys(publishers, 1))
        before = threads()
        with receiving(sink, {key: publisher.endpoint for key, publisher in publishers.items()}) as source:
            assert sorted({*threads()} - {*before}) == ["cachelb-kv-events"]
            for key, publisher in publishers.items():
                publish(publisher, 1, 2)
                sink.wait_applied([1, 2], key)
                publisher.drop()
            for publisher in publishers.values():
                publish(publisher, 3, 4)
            for key in publishers:
                sink.wait_applied([1, 2, 3, 4], key)
            assert len(sink.threads) == 1
            assert {stream.state for stream in source.stats().streams.values()} <= {"live", "replaying"}


def test_stopping_leaves_no_thread_no_socket_and_no_file() -> None:
    with nothing_left(), EventPublisher() as publisher:
        with connected(publisher) as (sink, source):
            publisher.hold_replay()
            publisher.drop()
            publish(publisher, 0, 1)
            publisher.wait_for(lambda: len(publisher.replay_requests) == 2)
        assert sink.of(W).told[-1] == "disconnected", "the sink must not trust a cache without updates"
        source.stop()
        assert source.stats().streams == {}


def test_a_source_can_be_started_again_and_only_once_at_a_time() -> None:
    with nothing_left(), EventPublisher() as publisher:
        source = ZmqSource(endpoints={W: publisher.endpoint})
        for names in ([1], [1, 2]):
            publish(publisher, names[-1])
            sink = RecordingSink({W: 1})
            source.start(sink)
            with pytest.raises(RuntimeError, match="one ZmqSource per router"):
                source.start(sink)
            sink.wait_applied(list(names), W)
            source.stop()


@pytest.mark.parametrize(
    ("key", "endpoint", "reason"),
    [
        ("unix:///run/engine.sock", None, "its key is no http URL"),
        ("plain", None, "its key is no http URL"),
        ("ipc", Endpoint("ipc:///nowhere/at/all", bind=True), "No such file"),
        ("taken", "same", "is there already"),
    ],
    ids=["unix", "no address", "not to be opened", "taken"],
)
def test_a_worker_without_a_usable_endpoint_is_named_once_and_stops_nobody(
    key: str, endpoint: Endpoint | str | None, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with EventPublisher() as publisher, caplog.at_level(logging.ERROR):
        endpoints = {W: publisher.endpoint}
        if endpoint is not None:
            endpoints[key] = publisher.endpoint if isinstance(endpoint, str) else endpoint
        sink = RecordingSink({W: 1, key: 1})
        with receiving(sink, endpoints) as source:
            publish(publisher, 1)
            sink.wait_applied([1], W)
            bad = source.stats().streams[key, None]
            assert (bad.state, bad.last_error is None) == ("unusable", False)
            assert source.stats().streams[W, None].state in {"live", "replaying"}
            del sink.workers[key]
            wait_until(lambda: list(source.stats().streams) == [(W, None)])
        assert [reason in record.message for record in caplog.records] == [True]


def test_an_address_that_becomes_free_is_taken() -> None:
    with EventPublisher() as publisher:
        sink = RecordingSink({"first": 1, "second": 1})
        with receiving(sink, dict.fromkeys(sink.workers, publisher.endpoint)) as source:
            publish(publisher, 1)
            sink.wait_applied([1], "first")
            del sink.workers["first"]
            sink.wait_applied([1], "second")
            assert list(source.stats().streams) == [("second", None)]
            assert source.stats().streams["second", None].state in {"live", "replaying"}


def test_endpoints_may_be_a_function_and_its_errors_are_the_workers_own(caplog: pytest.LogCaptureFixture) -> None:
    with EventPublisher() as publisher:

        def endpoints(key: str) -> Endpoint | None:
            if key == "broken":
                raise LookupError("secret of the function")
            return publisher.endpoint if key == W else None

        sink = RecordingSink({"broken": 1, "silent": 1, W: 1})
        with receiving(sink, endpoints) as source:
            publish(publisher, 1)
            sink.wait_applied([1], W)
            assert sorted(key for key, _ in source.stats().streams) == sorted(["broken", W])
        assert "no event stream of broken: LookupError" in caplog.text
        assert "secret" not in caplog.text


def test_a_router_that_does_not_name_its_workers_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    class Shy(RecordingSink):
        shy = False

        def ranks(self) -> list[tuple[str, int]]:
            if self.shy:
                raise RuntimeError("not now")
            return super().ranks()

    with EventPublisher() as publisher:
        sink = Shy({W: 1})
        with receiving(sink, {W: publisher.endpoint}):
            publish(publisher, 1)
            sink.wait_applied([1], W)
            sink.shy = True
            wait_until(lambda: "does not name its workers" in caplog.text)
            publish(publisher, 2)
            sink.wait_applied([1, 2], W)


def test_passwords_in_keys_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    sink = RecordingSink({"http://user:secret@127.0.0.1:9/?token=secret": 1, "ftp://user:secret@host": 1})
    with caplog.at_level(logging.DEBUG), receiving(sink, {}, default_port=9) as source:
        wait_until(lambda: len(source.stats().streams) == 2)
        wait_until(
            lambda: (
                {stream.last_error for stream in source.stats().streams.values()} == {"not reachable", "no endpoint"}
            )
        )
    assert "127.0.0.1" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_has_sockets_of_its_own() -> None:
    with EventPublisher() as publisher, connected(publisher) as (sink, source):
        publish(publisher, 1)
        sink.wait_applied([1], W)

        def child() -> None:
            own = RecordingSink({W: 1})
            source.start(own)
            own.wait_applied([1], W)
            source.stop()

        in_child(child)
        publish(publisher, 2)
        sink.wait_applied([1, 2], W)
        assert source.stats().streams[W, None].connections == 1, "the child did not touch the parent's sockets"


def test_a_program_that_forgets_to_close_ends_all_the_same() -> None:
    program = """
from cachelb.events import ZmqSource
class Sink:
    def ranks(self): return []
    def address_of(self, name): return name
    event_sink = property(lambda self: self)
source = ZmqSource()
source.start(Sink())
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=120)


PROMPT = "word" * 64
GPU = "http://gpu0:8000"


def test_workers_are_found_by_what_they_say_of_themselves() -> None:
    with nothing_left(), FakeFleet(2, kv_events=True) as fleet:
        sink = RecordingSink(dict.fromkeys(fleet.urls, 1))
        with receiving(sink, None, discover=True) as source:
            for url in fleet.urls:
                complete(url, PROMPT)
                sink.wait_for(lambda url=url: sink.of(url).last == 0)  # type: ignore[misc]
                endpoint = fleet.kv_endpoint(url)
                assert endpoint is not None
                assert source.stats().streams[url, None].address == endpoint.address


def test_a_worker_that_is_down_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    with FakeFleet(1, kv_events=True) as fleet, caplog.at_level(logging.ERROR):
        (worker,) = fleet.workers
        worker.stop()
        sink = RecordingSink({worker.url: 1})
        with receiving(sink, None, discover=True) as source:
            wait_until(lambda: (worker.url, None) in source.stats().streams)
            bad = source.stats().streams[worker.url, None]
            assert (bad.state, bad.last_error) == ("unusable", "unknown address")
            worker.start()
            complete(worker.url, PROMPT)
            sink.wait_for(lambda: sink.of(worker.url).last == 0)
        assert len(caplog.records) == 1


@pytest.mark.parametrize(("knows_the_page", "port"), [(False, 6001), (True, 9)], ids=["at the port", "as configured"])
def test_a_worker_publishes_where_the_user_or_the_port_says(knows_the_page: bool, port: int) -> None:
    with FakeFleet(1, kv_events=knows_the_page) as fleet:
        (url,) = fleet.urls
        endpoints = {url: Endpoint("tcp://127.0.0.1:9")} if knows_the_page else {}
        ports = {"default_port": 6001, "replay_port": 6002}
        with receiving(RecordingSink({url: 1}), endpoints, discover=True, **ports) as source:
            wait_until(lambda: (url, None) in source.stats().streams)
            assert source.stats().streams[url, None].address == f"tcp://127.0.0.1:{port}"


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (b'{"0": {"endpoint": "tcp://*:1", "replay_endpoint": "tcp://0.0.0.0:2"}}', {0: ("tcp://gpu0:1", "tcp://gpu0:2")}),
        (
            b'{"0": {"endpoint": "tcp://[::]:1"}, "1": {"endpoint": "tcp://*:2"}}',
            {0: ("tcp://gpu0:1", None), 1: ("tcp://gpu0:2", None)},
        ),
        (b'{"0": {"endpoint": "ipc:///run/events", "topic": "kv"}}', {0: ("ipc:///run/events", None)}),
        (b'{"0": {"endpoint": "tcp://indexer:5557"}}', {}),
        (b'{"0": {}}', {}),
        (b"{}", {}),
    ],
    ids=["any host", "ranks", "ipc", "engine connects", "nothing", "no rank"],
)  # fmt: skip
def test_pages(page: bytes, expected: dict[int, tuple[str, str | None]]) -> None:
    assert {rank: (found.address, found.replay) for rank, found in parse_page(page, GPU).items()} == expected


@pytest.mark.parametrize("page", [b"<html>", b"[]", b'{"0": 1}', b'{"a": {"endpoint": "tcp://*:1"}}', b"\xff"])
def test_pages_that_are_none(page: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of whatever kind
        parse_page(page, GPU)
