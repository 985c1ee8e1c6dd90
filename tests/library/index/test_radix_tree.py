"""Facts that a radix tree must satisfy: what peers got wrong, and what follows from the contract."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.library.index.test_threads import run

from cachelb.errors import SnapshotError
from cachelb.index import PrefixMatch, RadixTree

if TYPE_CHECKING:
    from cachelb.types import Tokens  # it is there for type checkers alone

Inserts = list[tuple[str, str]]


def tree_of(inserts: Inserts) -> RadixTree:
    tree = RadixTree()
    for text, worker in inserts:
        tree.insert(text, worker)
    tree.validate()
    return tree


T1: Inserts = [("hello", "A"), ("hello", "B"), ("hello world", "B"), ("help", "A"), ("helicopter", "B")]


def test_t15_counts_hold_after_threads() -> None:
    tree = RadixTree(max_units=3000)

    def work(seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(1500):
            worker = f"w{dice.randrange(6)}"
            key = "".join(dice.choices("abé", k=dice.randrange(30)))
            match dice.randrange(12):
                case 0:
                    tree.evict(dice.randrange(3000))
                case 1:
                    tree.remove_worker(worker)
                case 2 | 3 | 4:
                    found = tree.match_prefix(key)
                    assert found.matched <= found.total == len(key)
                case 5:
                    tree.insert(key, worker, remote=True)
                case _:
                    tree.insert(key, worker)

    run(work)
    tree.validate()
    assert tree.size() == sum(tree.size(worker) for worker in tree.workers()) <= 3000


PAGES = list(range(100, 196))


def test_p8_containers_are_equal_and_bad_tokens_refused() -> None:
    tree = RadixTree(page_size=16)
    tree.insert(PAGES, "A")
    words = array("I", PAGES)
    forms: list[Tokens] = [
        words,
        memoryview(words),
        words.tobytes(),
        np.array(PAGES, dtype=np.int64),
        np.array(PAGES, dtype=np.uint32),
        tuple(PAGES),
    ]
    for form in forms:
        assert tuple(tree.match_prefix(form)) == (len(PAGES), len(PAGES), ("A",))
    assert tuple(tree.match_prefix(PAGES[:35])) == (32, 35, ("A",)), "whole pages"
    for bad in (-1, 4294967296):
        with pytest.raises(ValueError, match=r"key\[2\]"):
            tree.insert([1, 2, bad], "A")


def test_the_first_key_decides_the_kind() -> None:
    tree = RadixTree()
    assert tree.match_prefix([1]).matched == tree.match_prefix("x").matched == 0
    tree.insert("text", "A")
    for call in (lambda: tree.insert([1], "A"), lambda: tree.match_prefix([1]), lambda: tree.overlaps(b"\0\0\0\0")):
        with pytest.raises(TypeError, match="holds text"):
            call()
    with pytest.raises(TypeError, match="holds tokens"):
        RadixTree(page_size=16).insert("text", "A")
    with pytest.raises(TypeError, match="sequence of int, got float"):
        tree.insert(1.5, "A")  # type: ignore[arg-type]


def test_times_to_live_end() -> None:
    now = 0.0
    tree = RadixTree(ttl_s=5, clock=lambda: now)
    tree.insert("abcdef", "A")
    tree.insert("abc", "B", ttl_s=2)
    now = 1.9
    assert tree.overlaps("abcdef") == {"A": 6, "B": 3}
    now = 2.0
    assert tree.overlaps("abcdef") == {"A": 6}
    tree.insert("ab", "A")
    now = 5.0
    assert tree.overlaps("abcdef") == {"A": 2}
    restored = RadixTree.restore(tree.snapshot(), clock=lambda: 100.0)
    assert restored.overlaps("abcdef") == {"A": 2}
    now = 7.0
    assert (tree.overlaps("abcdef"), tree.size()) == ({}, 0)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        pytest.param(lambda: RadixTree(max_units=0), ValueError, "max_units", id="no units"),
        pytest.param(lambda: RadixTree(page_size=0), ValueError, "page_size", id="no page"),
        pytest.param(lambda: RadixTree(page_size=16, max_units=15), ValueError, "at least page_size", id="no room"),
        pytest.param(lambda: RadixTree(ttl_s=0), ValueError, "ttl_s", id="no life"),
        pytest.param(lambda: RadixTree().insert("a", "A", at=float("nan")), ValueError, "at must be", id="no time"),
        pytest.param(lambda: RadixTree().evict(-1), ValueError, "max_units", id="negative"),
        pytest.param(lambda: RadixTree().evict_oldest("A", -1), ValueError, "min_units", id="negative too"),
        pytest.param(lambda: RadixTree().insert("a\ud800", "A"), ValueError, "surrogate", id="half a character"),
        pytest.param(lambda: RadixTree().match_prefix("a", among="A"), TypeError, "among", id="one name"),
    ],
)
def test_bad_arguments_are_named(call: Callable[[], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()


def test_damaged_snapshots_are_refused() -> None:
    tree = tree_of([*T1, ("你好", "C")])
    tree.insert("remote", "A", remote=True)
    data = tree.snapshot()
    assert RadixTree.restore(data).snapshot() == data
    dice = random.Random(5)
    for _ in range(500):
        at = dice.randrange(len(data))
        bad = (
            data[:at]
            if dice.random() < 0.3
            else data[:at] + bytes([data[at] ^ 1 << dice.randrange(8)]) + data[at + 1 :]
        )
        with pytest.raises(SnapshotError):
            RadixTree.restore(bad)


def test_matches_are_values_that_show_no_text() -> None:
    tree = tree_of([("secret", "A")])
    found = tree.match_prefix("secrets")
    assert found == tree.match_prefix("secretx")
    assert hash(found) == hash(tree.match_prefix("secretx"))
    assert repr(found) == "PrefixMatch(matched=6, total=7, workers=('A',))"
    assert isinstance(found, PrefixMatch)
    assert repr(tree) == "RadixTree(max_units=None, page_size=1, workers=1)"
