"""Facts every block index must satisfy: what peers got wrong, and what follows from the contract.

Lists are block contents; a block holds one token. Letters name blocks where order of use is what matters.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from cachelb import BlockTracker, Namespace, hash_blocks
from cachelb.testing import NaiveTracker


def chain(contents: list[int]) -> list[int]:
    return [int(block) for block in hash_blocks(contents, 1)]


def tracker(cap: int = 1000, **options: Any) -> BlockTracker:
    return BlockTracker(block_size=1, max_blocks_per_worker=cap, **options)


def word(letters: str) -> list[int]:
    return [ord(letter) for letter in letters]


@dataclass(frozen=True)
class Case:
    """Chains stored, single blocks (the last of a path) removed, and the overlaps then expected."""

    id: str
    stored: list[tuple[str, list[int]]]
    expected: dict[str, int]
    asked: list[int]
    removed: list[tuple[str, list[int]]] = field(default_factory=list)
    again: list[tuple[str, list[int]]] = field(default_factory=list)


CASES = [
    Case("C1 a changed middle ends the overlap", [("w", [1, 2, 3, 4])], {"w": 1}, [1, 9, 3, 4]),
    Case("C2 a removed middle ends it", [("w", [1, 2, 3, 4, 5])], {"w": 1}, [1, 2, 3, 4, 5], removed=[("w", [1, 2])]),
    Case(
        "C2 stored again it revives the tail",
        [("w", [1, 2, 3, 4, 5])],
        {"w": 5},
        [1, 2, 3, 4, 5],
        removed=[("w", [1, 2])],
        again=[("w", [1, 2])],
    ),
    Case("C3 holders are compared, not counted", [("a", [1]), ("b", [5, 2])], {"a": 1}, [1, 2]),
    Case("C4 every worker is answered", [("a", [1, 2, 3, 4]), ("b", [1, 2])], {"a": 4, "b": 2}, [1, 2, 3, 4]),
    Case(
        "C7 a removed tail shortens it",
        [("w", [1, 2, 3, 4, 5, 6, 7, 8])],
        {"w": 6},
        [1, 2, 3, 4, 5, 6, 7, 8],
        removed=[("w", [1, 2, 3, 4, 5, 6, 7]), ("w", [1, 2, 3, 4, 5, 6, 7, 8])],
    ),
    Case(
        "C20 a removal concerns one worker", [("a", [1, 2]), ("b", [1, 2])], {"a": 1, "b": 2}, [1, 2], [("a", [1, 2])]
    ),
    Case("peer: foreign tails", [("A", [1, 2, 3, 4]), ("B", [9, 8, 7, 6])], {"A": 2}, [1, 2, 5, 6]),
    Case("peer: foreign middle", [("A", [1, 2, 3, 4]), ("B", [9, 8, 7, 6])], {"A": 1}, [1, 5, 5, 4]),
    Case("peer: block 2 removed", [("w", [1, 2, 3, 4])], {"w": 1}, [1, 2, 3, 4], removed=[("w", [1, 2])]),
    Case("peer: head of 3 removed", [("w", [1, 2, 3])], {}, [1, 2, 3], removed=[("w", [1])]),
    Case("peer: head back", [("w", [1, 2, 3])], {"w": 3}, [1, 2, 3], removed=[("w", [1])], again=[("w", [1])]),
    Case("G2 hole, whole query", [("w", list(range(8)))], {"w": 3}, list(range(8)), removed=[("w", list(range(4)))]),
    Case("G2 hole, short query", [("w", list(range(8)))], {"w": 3}, list(range(6)), removed=[("w", list(range(4)))]),
    Case("unknown first block", [("w", [1, 2])], {}, [2]),
    Case("empty query", [("w", [1, 2])], {}, []),
]


@pytest.mark.parametrize("matcher", ["kary", "binary", "linear"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_overlaps_after_stores_and_removals(case: Case, matcher: str) -> None:
    index, oracle = tracker(matcher=matcher), NaiveTracker(block_size=1)
    for each in (index, oracle):
        for worker, contents in case.stored:
            each.store(worker, chain(contents))
        for worker, path in case.removed:
            assert each.remove(worker, chain(path)[-1:]) == 1
        for worker, path in case.again:
            parent = chain(path)[-2] if len(path) > 1 else None
            assert each.store(worker, chain(path)[-1:], parent=parent) == 1
    assert index.overlaps(case.asked) == case.expected
    assert oracle.overlaps(case.asked) == case.expected
    index.validate()


def test_c05_c06_a_store_continues_behind_its_parent_and_repeats_add_nothing() -> None:
    index, blocks = tracker(), chain([1, 2, 3, 4, 5, 6, 7, 8])
    assert index.store("w", blocks[:4]) == 4
    assert [index.store("w", blocks[4:], parent=blocks[3]) for _ in range(3)] == [4, 0, 0]
    assert index.overlaps(list(range(1, 10))) == {"w": 8}
    assert index.block_count("w") == 8


def test_c08_unknown_removals_change_nothing() -> None:
    index = tracker()
    index.record_request([1, 2], "w")
    before = index.snapshot()
    assert index.remove("w", [123456]) == 0
    assert index.remove("nobody", chain([1])) == 0
    assert (index.clear("nobody"), index.evict_worker("nobody", 0), index.remove_worker("nobody")) == (0, 0, 0)
    assert index.snapshot() == before


def test_c09_clear_empties_one_worker_and_leaves_it_usable() -> None:
    index = tracker()
    empty = index.memory_bytes
    index.record_request(list(range(500)), "w")
    index.record_request([1, 2], "other")
    assert index.clear("w") == 500
    assert (index.block_count("w"), index.overlaps(list(range(500)))) == (0, {})
    assert index.overlaps([1, 2]) == {"other": 2}
    assert sorted(index.workers()) == ["other", "w"]
    assert index.record_request([5, 6, 7], "w") == 3
    assert index.overlaps([5, 6, 7]) == {"w": 3}
    for worker in ("w", "other"):
        index.remove_worker(worker)
    assert index.memory_bytes <= empty + 4096, "nothing is kept of what was removed"


def test_c10_a_store_behind_an_unknown_parent_is_dropped_and_never_rooted() -> None:
    index, blocks = tracker(), chain([1, 2])
    assert index.store("w", blocks[1:], parent=blocks[0]) == 0
    assert index.overlaps([2]) == {}
    assert index.overlaps([1, 2]) == {}
    index.store("w", blocks[:1])
    assert index.overlaps([1, 2]) == {"w": 1}
    index.validate()


@pytest.mark.parametrize(("tokens", "size", "blocks"), [(10, 4, 2), (3, 4, 0), (0, 1, 0), (4, 4, 1)])
def test_c11_the_partial_tail_is_ignored(tokens: int, size: int, blocks: int) -> None:
    index = BlockTracker(block_size=size)
    assert len(hash_blocks(range(tokens), size)) == blocks
    assert index.record_request(range(tokens), "w") == blocks
    match = index.find_best_worker(range(tokens))
    assert (match and match.total_blocks) == (blocks or None)


def test_c13_a_block_stored_twice_leaves_with_one_removal() -> None:
    index, blocks = tracker(), chain([1, 2])
    index.store("w", blocks)
    index.store("w", blocks)
    assert index.remove("w", blocks[1:]) == 1
    assert index.overlaps([1, 2]) == {"w": 1}


def test_c14_clear_leaves_no_ghost_chain() -> None:
    index = tracker()
    for contents in ([11, 12], [21, 22]):
        index.store("w", chain(contents))
    index.clear("w")
    assert (index.overlaps([11, 12]), index.overlaps([21, 22])) == ({}, {})


def test_c15_a_block_leaves_with_its_last_medium() -> None:
    index, blocks = tracker(), chain([1])
    for medium in ("gpu", "cpu"):
        assert index.store("w", blocks, medium=medium) == 1
    assert index.store("w", blocks, medium="moon") == 0
    assert index.block_count("w") == 1
    assert index.remove("w", blocks, medium="gpu") == 1
    assert index.overlaps([1]) == {"w": 1}
    assert index.remove("w", blocks) == 1
    assert index.overlaps([1]) == {}
    for medium in ("gpu", "disk"):
        index.store("w", blocks, medium=medium)
    assert index.remove("w", blocks, medium="moon") == 2, "an unknown medium clears all"
    assert index.block_count("w") == 0


@pytest.mark.parametrize("first", ["store", "remove"])
def test_c16_write_back_and_removal_converge_in_both_orders(first: str) -> None:
    index, blocks = tracker(), chain([1])
    index.store("w", blocks, medium="gpu")
    if first == "store":
        index.store("w", blocks, medium="cpu")
    index.remove("w", blocks, medium="gpu")
    if first == "remove":
        index.store("w", blocks, medium="cpu")
    assert index.remove("w", blocks, medium="gpu") == 0
    assert index.overlaps([1]) == {"w": 1}
    assert index.remove("w", blocks, medium="cpu") == 1


@pytest.mark.parametrize(
    ("stored", "asked"),
    [("s", None), (None, "s"), (Namespace("a"), Namespace("b")), (Namespace("a"), None), (Namespace("x"), "x")],
)
def test_c17_identities_do_not_match_each_other(stored: Any, asked: Any) -> None:
    index = tracker()
    index.record_request([1, 2], "w", namespace=stored)
    assert index.overlaps([1, 2], namespace=stored) == {"w": 2}
    assert index.overlaps([1, 2], namespace=asked) == {}
    assert index.find_best_worker([1, 2], namespace=asked) is None


def test_c18_a_name_registered_again_starts_with_nothing() -> None:
    index = tracker()
    index.record_request([1, 2], "w")
    index.remove_worker("w")
    assert index.overlaps([1, 2]) == {}
    index.store("w", chain([1]))
    assert index.overlaps([1, 2]) == {"w": 1}


def test_c19_there_is_no_silent_limit_on_workers() -> None:
    index, number = tracker(), 2049
    for worker in range(number):
        index.store(f"w{worker}", chain([7, worker]))
    assert index.overlaps([7, 2048]) == {f"w{worker}": 2 if worker == 2048 else 1 for worker in range(number)}
    match = index.find_best_worker([7, 2048])
    assert match is not None
    assert (match.worker, match.matched_blocks, match.total_blocks) == ("w2048", 2, 2)


def test_c21_only_whole_blocks_count() -> None:
    index = BlockTracker(block_size=64)
    index.record_request(range(64), "w")
    assert index.overlaps([*range(48), *range(900, 916)]) == {}


def test_c22_extreme_hashes_are_hashes() -> None:
    index, extreme = tracker(), [0, 2**63, 2**64 - 1]
    assert index.store("w", extreme) == 3
    assert index.overlaps_of_hashes(extreme) == {"w": 3}
    assert index.remove("w", [2**64 - 1]) == 1
    for wrong in (-1, 2**64):
        with pytest.raises(ValueError, match=rf"hashes\[1\] must be from 0 to 18446744073709551615, got {wrong}"):
            index.store("w", [5, wrong])
        with pytest.raises(ValueError, match=rf"parent must be from 0 to 18446744073709551615, got {wrong}"):
            index.store("w", [5], parent=wrong)
    assert index.overlaps_of_hashes(extreme) == {"w": 2}


EVICTIONS = [
    ("L1 one epoch", 3, ["ABCDEF"], {"ABCDEF": 3}),
    ("L2 longer than the cap", 4, ["ABCDEFGHIJ"], {"ABCDEFGHIJ": 4}),
    ("L3 least recent path", 6, ["ABC", "DEF", "ABC", "GHI"], {"ABC": 3, "DEF": 0, "GHI": 3}),
    ("L4 shared parents", 3, ["ABC", "ABD"], {"ABC": 2, "ABD": 3}),
    ("L6 a prefix refreshes the prefix", 5, ["ABCD", "AB", "XYZ"], {"ABCD": 2, "AB": 2, "XYZ": 3}),
]


@pytest.mark.parametrize(("cap", "recorded", "expected"), [row[1:] for row in EVICTIONS], ids=[r[0] for r in EVICTIONS])
def test_evictions_take_the_least_recent_leaf(cap: int, recorded: list[str], expected: dict[str, int]) -> None:
    index, oracle = tracker(cap), NaiveTracker(block_size=1, max_blocks_per_worker=cap)
    for each in (index, oracle):
        for letters in recorded:
            each.record_request(word(letters), "w")
            assert each.block_count("w") <= cap
        assert {letters: each.overlaps(word(letters)).get("w", 0) for letters in expected} == expected


def test_l05_a_lookup_is_no_use() -> None:
    index = tracker(6)
    index.record_request(word("ABC"), "w")
    index.record_request(word("DEF"), "w")
    for _ in range(100):
        index.overlaps(word("ABC"))
    index.record_request(word("GHI"), "w")
    assert [index.overlaps(word(w)).get("w", 0) for w in ("ABC", "DEF", "GHI")] == [0, 3, 3]


def test_l09_an_eviction_concerns_one_worker() -> None:
    index = tracker()
    for worker in ("a", "b"):
        index.record_request([1, 2, 3], worker)
    assert index.evict_worker("a", 0) == 3
    assert index.overlaps([1, 2, 3]) == {"b": 3}
    assert index.evict_worker("b", 2) == 1
    assert index.overlaps([1, 2, 3]) == {"b": 2}


def test_l10_two_threads_recording_one_prompt_count_it_once() -> None:
    index, barrier = tracker(), threading.Barrier(2)
    added: list[int] = []

    def record() -> None:
        barrier.wait()
        added.append(index.record_request(list(range(800)), "w"))

    threads = [threading.Thread(target=record) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(added) == [0, 800]
    assert index.block_count("w") == 800
    index.validate()


def test_g1_the_same_document_behind_another_head_is_another_document() -> None:
    index, documents = tracker(), list(range(1000, 1100))
    index.record_request([1, 2, 3, 4, 50, *documents], "w1")
    assert index.overlaps([1, 2, 3, 4, 51, *documents]) == {"w1": 4}


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 63, 64, 65, 127, 128, 129, 4095, 4096, 4097, 8191, 8192, 8193])
@pytest.mark.parametrize("matcher", ["kary", "binary", "linear"])
def test_every_length_around_the_search_and_storage_steps_is_exact(length: int, matcher: str) -> None:
    index, prompt = tracker(cap=20_000, matcher=matcher), list(range(8200))
    assert index.record_request(prompt[:length], "w") == length
    index.record_request(prompt[: length // 2], "half")
    for asked in (0, 1, length // 2, length - 1, length, length + 1, 8200):
        expected = {"w": min(asked, length), "half": min(asked, length // 2)} if asked > 0 else {}
        assert index.overlaps(prompt[: max(asked, 0)]) == {w: blocks for w, blocks in expected.items() if blocks}
    index.validate()


def test_hashes_that_are_no_chain_match_only_in_place() -> None:
    index = tracker()
    index.store("w", [10, 20, 30])
    index.store("w", [40], parent=10)
    index.store("v", [20])
    asked = {(10, 20, 30): 3, (10, 40): 2, (20, 30): 0, (10, 30): 1, (10, 20, 40): 2, (10, 10): 1, (40,): 0}
    assert {hashes: index.overlaps_of_hashes(list(hashes)).get("w", 0) for hashes in asked} == asked
    assert index.block_count("v") == 0, "20 stands behind 10"
    index.validate()


def test_long_churn_returns_memory_to_the_level_of_a_fresh_index() -> None:
    index = tracker(cap=2000)
    for start in range(40):
        index.record_request(range(start * 1000, start * 1000 + 500), "w")
    settled = index.memory_bytes
    for start in range(40, 800):
        index.record_request(range(start * 1000, start * 1000 + 500), "w")
    assert index.memory_bytes <= 2 * settled
    index.validate()
    index.remove_worker("w")
    assert index.memory_bytes <= 64 * 1024
