"""Frames: whoever changes, moves or repeats one is found out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelb.state.seal import BadFrameError, seal

SECRET = "of the fleet"  # noqa: S105 - of these tests
READER = seal(SECRET, "cachelb")
WRITERS = [seal(SECRET, "cachelb") for _ in range(3)]
CHANNELS = [b"n", b"b", b"cachelb:to:12"]


@given(body=st.binary(max_size=200), secret=st.sampled_from([None, SECRET]))
def test_frame_comes_back(body: bytes, secret: str | None) -> None:
    # Deriving keys takes long, so there is one reader; lives are new each time.
    ours = WRITERS[0] if secret else seal(None, "cachelb")
    theirs = WRITERS[1] if secret else seal(None, "cachelb")
    frame = ours.wrap(b"n", body)
    assert theirs.unwrap(b"n", frame) == (ours.life, body)
    assert ours.unwrap(b"n", frame) == (ours.life, body), "a router reads its own too"
    assert len(frame) - len(body) == (33 if secret else 9)


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
    for other in (seal("another", "cachelb"), seal(SECRET, "another"), seal(None, "cachelb")):
        for reader, writer in ((READER, other), (other, READER)):
            with pytest.raises(BadFrameError, match="secret"):
                reader.unwrap(b"n", writer.wrap(b"n", b"hello"))


def test_life_is_fresh_once_it_answered() -> None:
    reader, (writer, *_) = seal(SECRET, "cachelb"), WRITERS
    assert not reader.is_fresh(writer.life)
    reader.answered(writer.life)
    assert not reader.is_fresh(writer.life), "nothing of it was read"
    reader.unwrap(b"n", writer.wrap(b"n", b""))
    assert not reader.is_fresh(writer.life)
    reader.answered(writer.life)
    assert reader.is_fresh(writer.life)
