"""What relays and gateways say to each other, as bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelb.events.relayed import (
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
