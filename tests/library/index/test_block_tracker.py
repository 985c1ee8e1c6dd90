"""The tracker's contract as its users see it; the exhaustive comparison with the model is in properties/."""

from __future__ import annotations

import numpy as np
import pytest

from cachelb.index import BlockTracker, Match, hash_blocks
from cachelb.testing import ManualClock


def test_among_restricts_before_the_best_is_chosen() -> None:
    tracker = BlockTracker(block_size=1)
    tracker.record_request([1, 2, 3], "a")
    tracker.record_request([1, 2], "b")
    assert tuple(tracker.find_best_worker([1, 2, 3], among=["nobody", "b"]) or ()) == ("b", 2, 3)
    assert tracker.find_best_worker([1, 2, 3], among=[]) is None
    assert tracker.overlaps([1, 2, 3], among=(name for name in ("b", "b"))) == {"b": 2}
    assert tracker.overlaps_of_hashes(hash_blocks([1, 2, 3], 1), among={"a"}) == {"a": 3}


def test_unknown_workers_hold_nothing_and_are_no_error() -> None:
    tracker = BlockTracker(block_size=1)
    done = (tracker.remove("x", [1]), tracker.clear("x"), tracker.evict_worker("x", 0), tracker.remove_worker("x"))
    assert done == (0, 0, 0, 0)
    assert tracker.workers() == []


def test_a_time_to_live_goes_on_on_the_clock_of_the_restored_tracker() -> None:
    clock, other = ManualClock(), ManualClock(1000.0)
    tracker = BlockTracker(block_size=1, clock=clock)
    tracker.record_request([1], "a", ttl_s=10)
    clock.advance(4.0)
    restored = BlockTracker.restore(tracker.snapshot(), clock=other)
    other.advance(5.9)
    assert restored.overlaps([1]) == {"a": 1}
    other.advance(0.2)
    assert restored.overlaps([1]) == {}


def test_a_snapshot_restores_settings_workers_and_answers() -> None:
    tracker = BlockTracker(block_size=2, max_blocks_per_worker=7, hashing="eagle", matcher="binary", seed=5)
    tracker.record_request(range(9), "ä")
    tracker.record_request(range(5), "b")
    restored = BlockTracker.restore(bytearray(tracker.snapshot()))
    settings = ("block_size", "max_blocks_per_worker", "hashing", "matcher", "seed")
    assert [getattr(restored, name) for name in settings] == [2, 7, "eagle", "binary", 5]
    assert restored.overlaps(range(9)) == {"ä": 4, "b": 2}
    assert restored.snapshot() == tracker.snapshot()
    restored.validate()


def test_hashes_of_all_64_bits_are_kept() -> None:
    tracker = BlockTracker()
    chain = [0, 2**63, 2**64 - 1]
    assert tracker.store("a", chain) == 3
    for form in (chain, tuple(chain), np.array(chain, np.uint64), np.array(chain, "<u8").tobytes()):
        assert tracker.overlaps_of_hashes(form) == {"a": 3}


def test_positional_hashing_warns_and_is_inexact() -> None:
    with pytest.warns(UserWarning, match="inexact and kept for study"):
        tracker = BlockTracker(block_size=1, hashing="positional")
    exact = BlockTracker(block_size=1)
    for prompt in ([1, 2, 2, 2], [26, 3, 3, 4]):
        tracker.record_request(prompt, "w")
        exact.record_request(prompt, "w")
    assert tracker.overlaps([1, 3, 3, 4]) == {"w": 4}
    assert exact.overlaps([1, 3, 3, 4]) == {"w": 1}
    with pytest.raises(ValueError, match="a snapshot is not available"):
        tracker.snapshot()


def test_a_match_is_a_value() -> None:
    tracker = BlockTracker(block_size=1)
    tracker.record_request([1], "a")
    first, second = tracker.find_best_worker([1, 2]), tracker.find_best_worker([1, 2])
    assert first == second
    assert hash(first) == hash(second)
    assert first != tracker.find_best_worker([1])
    assert repr(first) == "Match(worker='a', matched_blocks=1, total_blocks=2)"
    match first:
        case Match(worker, matched, total):
            assert (worker, matched, total) == ("a", 1, 2)
        case _:
            pytest.fail("no match")
