"""Engines are asked where they publish."""

from __future__ import annotations

import logging

import pytest
from tests.http_client import complete
from tests.models.kv_sink import RecordingSink
from tests.models.kv_streams import nothing_left, receiving
from tests.waiting import wait_until

from cachelb.events import Endpoint
from cachelb.events.discovery import page_url, parse_page
from cachelb.testing import FakeFleet

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
            assert (bad.state, bad.last_error) == ("unusable", "not told where")
            worker.start()
            complete(worker.url, PROMPT)
            sink.wait_for(lambda: sink.of(worker.url).last == 0)
        assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("knows_the_page", "port"), [(False, 6001), (True, 9)], ids=["at the port", "where the user says"]
)
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


@pytest.mark.parametrize("key", ["http://gpu0:8000", "http://gpu0:8000/v1?x=1", "gpu0:8000"])
def test_the_page_lies_beside_the_api(key: str) -> None:
    assert page_url(key) == "http://gpu0:8000/kv_event_sources"
