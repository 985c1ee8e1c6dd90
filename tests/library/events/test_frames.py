"""Messages of relays, engines and gateways as bytes, and the addresses of streams."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelb.events import Endpoint
from cachelb.events.endpoints import default_endpoint
from cachelb.events.zmq.frames import END, replay_request, split_live, split_replay
from cachelb.events.zmq.relayed import (
    Relayed,
    StreamSign,
    live_frames,
    named_stream,
    relay_endpoint,
    split_relayed,
    state_frames,
    stream_name,
)

WHERE = st.tuples(st.text(st.characters(exclude_categories=["Cs"])), st.none() | st.integers(0, 2**31 - 1))
SIGNS = st.builds(
    StreamSign,
    st.binary(min_size=8, max_size=8),
    st.integers(0, 2**64 - 1),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


@given(WHERE, WHERE)
def test_names_come_back_and_none_begins_with_another(
    where: tuple[str, int | None], other: tuple[str, int | None]
) -> None:
    assert named_stream(stream_name(where)) == where
    assert where == other or not stream_name(where).startswith(stream_name(other))


@given(SIGNS, st.none() | st.integers(0, 2**63 - 1), st.binary())
def test_messages_come_back(sign: StreamSign, seq: int | None, payload: bytes) -> None:
    assert split_relayed(state_frames(b"name", sign, seq)) == Relayed(sign, seq)
    assert split_relayed(live_frames(b"name", sign, seq, payload)) == Relayed(sign, seq, (seq, payload))


@given(st.lists(st.binary(max_size=30) | st.just(StreamSign(b"12345678", 1).packed()), max_size=6))
def test_other_frames_are_none_of_a_relay(frames: list[bytes]) -> None:
    found = split_relayed(frames)
    assert found is None or len(frames) in (3, 4)
    for frame in frames:
        named_stream(frame)


@pytest.mark.parametrize(
    "address", ["relay:7800", "tcp://relay", "tcp://relay:65535", "tcp://*:7800", "tcp://relay:x", ""]
)
def test_what_is_no_address_of_a_relay_is_named(address: str) -> None:
    with pytest.raises(ValueError, match=r"relay must be an address like tcp://10\.0\.0\.2:7800, got "):
        relay_endpoint(address)


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
