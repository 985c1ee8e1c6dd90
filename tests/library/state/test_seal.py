"""Frames: a changed, moved or repeated one is refused."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelb.common.secret import Secret
from cachelb.state.seal import BadFrameError, Seal

OLD, NEW = Secret("known to all gateways"), Secret("known to them since today")
READER = Seal([OLD], "cachelb")
WRITERS = [Seal([OLD], "cachelb") for _ in range(3)]
CHANNELS = [b"n", b"b", b"cachelb:to:12"]


@given(body=st.binary(max_size=200))
def test_frame_comes_back(body: bytes) -> None:
    ours, theirs = WRITERS[:2]
    frame = ours.wrap(b"n", body)
    assert theirs.unwrap(b"n", frame) == (ours.life, body)
    assert ours.unwrap(b"n", frame) == (ours.life, body), "a router reads its own too"
    assert len(frame) - len(body) == 33


@given(data=st.data())
def test_changed_frames_are_refused(data: st.DataObject) -> None:
    body = data.draw(st.binary(max_size=50))
    frame = bytearray(WRITERS[0].wrap(b"n", body))
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BadFrameError):
        READER.unwrap(b"n", bytes(frame))
    with pytest.raises(BadFrameError):
        READER.unwrap(b"n", bytes(frame[:at]))


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(CHANNELS), st.integers(0, 10)), max_size=40))
def test_every_frame_is_taken_once_in_order_and_on_its_channel(steps: list[tuple[int, bytes, int]]) -> None:
    """Frames are written, and old ones played again; the model remembers all that was read."""
    written: list[tuple[int, bytes, int, bytes]] = []
    last: dict[tuple[int, bytes], int] = {}
    for number, (writer, channel, back) in enumerate(steps):
        if back < 5 or not written:
            frame = (writer, channel, number, WRITERS[writer].wrap(channel, number.to_bytes(4, "big")))
            written.append(frame)
        else:
            frame = written[-1 - back % len(written)]
        author, home, age, content = frame
        if channel == home and age > last.get((author, home), -1):
            assert READER.unwrap(channel, content) == (WRITERS[author].life, age.to_bytes(4, "big"))
            last[(author, home)] = age
        else:
            with pytest.raises(BadFrameError, match="another channel" if channel != home else "played again"):
                READER.unwrap(channel, content)


def test_other_secrets_and_streams_are_refused() -> None:
    for other in (Seal([NEW], "cachelb"), Seal([OLD], "another")):
        for reader, writer in ((READER, other), (other, READER)):
            with pytest.raises(BadFrameError, match="secret"):
                reader.unwrap(b"n", writer.wrap(b"n", b"hello"))


def test_frames_of_every_listed_secret_are_opened_and_own_ones_are_of_the_first() -> None:
    """A fleet changes its secret one router after the other, and none of them is deaf meanwhile."""
    steps = [Seal(secrets, "cachelb") for secrets in ([OLD], [OLD, NEW], [NEW, OLD], [NEW])]
    for at, (before, after) in enumerate(pairwise(steps)):
        for number, (writer, reader) in enumerate([(before, after), (after, before)] * 2):
            frame = writer.wrap(b"n", bytes([at, number]))
            assert reader.unwrap(b"n", frame) == (writer.life, bytes([at, number]))
    with pytest.raises(BadFrameError, match="another secret"):
        steps[0].unwrap(b"n", steps[2].wrap(b"n", b""))


def test_life_is_fresh_once_it_answered() -> None:
    reader, (writer, *_) = Seal([OLD], "cachelb"), WRITERS
    assert not reader.is_fresh(writer.life)
    reader.answered(writer.life)
    assert not reader.is_fresh(writer.life), "nothing of it was read"
    reader.unwrap(b"n", writer.wrap(b"n", b""))
    assert not reader.is_fresh(writer.life)
    reader.answered(writer.life)
    assert reader.is_fresh(writer.life)
