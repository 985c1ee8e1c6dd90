"""Damaged snapshots are refused with their reason, or restored to a sound tracker; never a panic or an abort."""

from __future__ import annotations

import random

import pytest

from cachelb import BlockTracker, CachelbError, SnapshotError, hash_blocks


def sample() -> BlockTracker:
    """Names of 2 and 4 letters, so that the bytes before the checksum are whole words."""
    tracker = BlockTracker(block_size=2, max_blocks_per_worker=30)
    tracker.record_request([1, 2, 3, 4, 5, 6, 7, 8], "w0")
    tracker.record_request([1, 2, 3, 4, 9, 9], "gpu1", ttl_s=1000)
    chain = hash_blocks([1, 2, 3, 4, 5, 6, 7, 8], 2)
    tracker.store("gpu2", chain[2:], parent=int(chain[1]), medium="cpu")
    tracker.remove("w0", chain[1:2])
    return tracker


def signed(content: bytes) -> bytes:
    """The content with a right checksum: the first block hash with seed 0 is plain XXH3-64 of the tokens' bytes."""
    words = len(content) // 4
    assert len(content) == 4 * words <= 4096
    return content + hash_blocks(content, words, seed=0).tobytes()


def use(data: bytes) -> bool:
    """Restores and uses a tracker; whether it could be restored."""
    try:
        tracker = BlockTracker.restore(data)
    except SnapshotError:
        return False
    tracker.validate()
    for worker in ("w0", "gpu1", "gpu2", "new"):
        tracker.record_request([1, 2, 3, 4, 5, 6, 7, 8], worker)
        tracker.overlaps([1, 2, 3, 4, 9, 9])
        tracker.evict_worker(worker, 2)
    tracker.validate()
    return True


def test_a_snapshot_survives_the_round_trip() -> None:
    tracker = sample()
    copy = BlockTracker.restore(tracker.snapshot())
    assert copy.workers() == tracker.workers()
    assert copy.overlaps([1, 2, 3, 4, 9, 9]) == tracker.overlaps([1, 2, 3, 4, 9, 9]) == {"w0": 1, "gpu1": 3}
    settings = [(t.block_size, t.max_blocks_per_worker, t.hashing, t.matcher, t.seed) for t in (tracker, copy)]
    assert settings == [(2, 30, "chained", "kary", 1337)] * 2


def test_the_checksum_of_these_tests_is_the_snapshots_own() -> None:
    data = sample().snapshot()
    assert signed(data[:-8]) == data
    assert use(data)


def test_every_cut_and_every_flipped_bit_is_refused() -> None:
    data = sample().snapshot()
    assert [length for length in range(len(data)) if use(data[:length])] == []
    taken = []
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        if use(bytes(flipped)):
            taken.append(bit)
    assert taken == []
    assert not use(data + b"\0")


def test_flips_under_a_right_checksum_are_refused_or_harmless() -> None:
    content = sample().snapshot()[:-8]
    outcomes = []
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        outcomes.append(use(signed(bytes(flipped))))
    assert 0 < sum(outcomes) < len(outcomes)


def test_wrong_words_under_a_right_checksum_are_refused_or_harmless() -> None:
    content = sample().snapshot()[:-8]
    for at in range(8, len(content) - 4):
        for word in (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x01\0\0\0"):
            use(signed(content[:at] + word + content[at + 4 :]))


def test_random_bytes_are_refused() -> None:
    rng = random.Random(1)
    data = sample().snapshot()
    for length in range(400):
        noise = rng.randbytes(length)
        assert not use(noise)
        assert not use(data[:12] + noise)
        use(signed(data[:12] + noise[: length // 4 * 4]))


def test_a_refused_snapshot_says_why() -> None:
    data = sample().snapshot()
    for wrong, why in [
        (b"", "does not start like a snapshot"),
        (b"\x80\x04K\x01.", "does not start like a snapshot"),
        (data[:8] + b"\x63\0\0\0" + data[12:], "version is 99"),
        (data[:-1], "checksum does not match"),
    ]:
        with pytest.raises(SnapshotError, match=why) as caught:
            BlockTracker.restore(wrong)
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, CachelbError)
