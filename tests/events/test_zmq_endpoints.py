"""Where streams are, and what the options of the source may be."""

from __future__ import annotations

from typing import Any

import pytest

from cachelb.events import Endpoint, ZmqSource
from cachelb.events.endpoints import default_endpoint
from cachelb.events.frames import END, replay_request, split_live, split_replay

SEVEN = b"\0\0\0\0\0\0\0\7"


@pytest.mark.parametrize(
    ("key", "address"),
    [
        ("http://gpu0:8000", "tcp://gpu0:5557"),
        ("https://gpu0", "tcp://gpu0:5557"),
        ("gpu0:8000", "tcp://gpu0:5557"),
        ("http://user:pw@10.0.0.7:8000/v1?x=1", "tcp://10.0.0.7:5557"),
        ("http://[fe80::1]:8000", "tcp://[fe80::1]:5557"),
    ],
)
def test_default_is_a_port_of_the_workers_host(key: str, address: str) -> None:
    assert default_endpoint(key, 5557, 5657) == Endpoint(address, address.replace("5557", "5657"))
    assert default_endpoint(key, 5557, None) == Endpoint(address)


@pytest.mark.parametrize("key", ["gpu0", "unix:///a.sock", "ftp://gpu0:1", "http://", "http://[::1", "http://h:secret"])
def test_a_key_without_a_host_is_refused_without_naming_it(key: str) -> None:
    with pytest.raises(ValueError, match="name its endpoint") as error:
        default_endpoint(key, 5557, None)
    assert key not in str(error.value)


def test_ranks_count_both_ports_up() -> None:
    endpoint = Endpoint("tcp://gpu0:5557", "tcp://gpu0:5657")
    assert endpoint.of_rank(0) is endpoint
    assert endpoint.of_rank(7) == Endpoint("tcp://gpu0:5564", "tcp://gpu0:5664")
    assert Endpoint("tcp://*:5557", bind=True).of_rank(1) == Endpoint("tcp://*:5558", bind=True)
    assert Endpoint("ipc:///run/events").of_rank(0) == Endpoint("ipc:///run/events")
    with pytest.raises(ValueError, match="rank 1 has no address: 'ipc:///run/events' has no port"):
        Endpoint("ipc:///run/events").of_rank(1)
    with pytest.raises(ValueError, match="rank 9 has no address: its port would be 65544"):
        Endpoint("tcp://gpu0:65535").of_rank(9)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"address": "gpu0:5557"}, ValueError, "address must be tcp://host:port or ipc:///path, got 'gpu0:5557'"),
        ({"address": "tcp://gpu0"}, ValueError, "address must be"),
        ({"address": "tcp://gpu0:0"}, ValueError, "address must be"),
        ({"address": "tcp://gpu0:70000"}, ValueError, "address must be"),
        ({"address": "tcp://::1:5557"}, ValueError, "address must be"),
        ({"address": "inproc://x"}, ValueError, "address must be"),
        ({"address": "ipc://"}, ValueError, "address must be"),
        ({"address": 5557}, TypeError, "address must be text such as 'tcp://gpu0:5557', got int"),
        ({"address": "tcp://*:5557"}, ValueError, "address must name the engine's host"),
        ({"address": "tcp://a:1", "replay": "tcp://*:2"}, ValueError, "replay must name the engine's host"),
        ({"address": "tcp://a:1", "replay": "x"}, ValueError, "replay must be"),
        ({"address": "tcp://a:1", "bind": 1}, TypeError, "bind must be True or False, got int"),
    ],
)
def test_bad_endpoints_are_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message.replace("*", r"\*")):
        Endpoint(**arguments)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"default_port": 0}, ValueError, "default_port must be from 1 to 65535, got 0"),
        ({"default_port": "5557"}, TypeError, "default_port must be a port number, got str"),
        ({"replay_port": 65_536}, ValueError, "replay_port must be from 1 to 65535, got 65536"),
        ({"topic_filter": b"kv"}, TypeError, "topic_filter must be text, got bytes"),
        ({"rcvhwm": 0}, ValueError, "rcvhwm must be at least 1, got 0"),
        ({"rcvhwm": 1.5}, TypeError, "rcvhwm must be int, got float"),
        ({"rcvhwm": True}, TypeError, "rcvhwm must be int, got bool"),
        ({"replay_timeout_s": 0}, ValueError, "replay_timeout_s must be above 0, got 0"),
        ({"replay_timeout_s": float("nan")}, ValueError, "replay_timeout_s must be a finite number, got nan"),
        ({"replay_timeout_s": "5"}, TypeError, "replay_timeout_s must be a number, got str"),
        ({"endpoints": ["a"]}, TypeError, "endpoints must be a mapping or a function, got list"),
        ({"endpoints": {"a": "tcp://a:1"}}, TypeError, "the endpoint of 'a' must be an Endpoint, got str"),
        ({"endpoints": {1: Endpoint("tcp://a:1")}}, TypeError, "a key of endpoints must be a worker's key, got int"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ZmqSource(**options)


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([b"topic", SEVEN, b"data"], (7, b"data")),
        ([b"", SEVEN, b""], (7, b"")),
        ([b"topic", b"data"], (None, b"data")),
        ([b"data"], None),
        ([], None),
        ([b"topic", b"\7", b"data"], None),
        ([b"topic", b"\xff" * 8, b"data"], None),
        ([b"topic", b"\x80" + b"\0" * 7, b"data"], None),
        ([b"topic", SEVEN, b"data", b"more"], None),
    ],
)
def test_live_frames(frames: list[bytes], expected: tuple[int | None, bytes] | None) -> None:
    assert split_live(frames) == expected


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([b"", b"topic", SEVEN, b"data"], (7, b"data")),
        ([b"", SEVEN, b"data"], (7, b"data")),
        ([b"", b"", b"\xff" * 8, b""], (END, b"")),
        ([b"", b"\xff" * 8, b""], (END, b"")),
        ([b""], None),
        ([b"", b"\7", b"data"], None),
        ([b"", b"\xff" * 7 + b"\xfe", b""], None),
    ],
)
def test_replay_frames(frames: list[bytes], expected: tuple[int, bytes] | None) -> None:
    assert split_replay(frames) == expected


def test_replay_request_is_what_engines_take() -> None:
    assert replay_request(7) == [b"", SEVEN]
