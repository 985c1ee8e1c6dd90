"""Every wrong type, value and shape gets the documented error, and never ends the process or changes the state."""

from __future__ import annotations

import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from cachelb.index import BlockTracker, Namespace, hash_blocks

U32, U64 = 4294967295, 18446744073709551615


class Raising:
    """Raises its own error wherever it is asked for anything."""

    def __index__(self, *_: object) -> int:
        raise ZeroDivisionError("on purpose")

    __iter__ = __getitem__ = __len__ = __hash__ = __index__


class Endless(Sequence[int]):
    """Never ends, whatever its length."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, at: Any) -> Any:
        return 5


def filled() -> BlockTracker:
    tracker = BlockTracker(block_size=1, max_blocks_per_worker=50)
    tracker.record_request([1, 2, 3], "w")
    return tracker


TOKEN_CALLS: dict[str, Callable[[BlockTracker, Any], Any]] = {
    "hash_blocks": lambda _, tokens: hash_blocks(tokens),
    "record_request": lambda tracker, tokens: tracker.record_request(tokens, "w"),
    "find_best_worker": lambda tracker, tokens: tracker.find_best_worker(tokens),
    "overlaps": lambda tracker, tokens: tracker.overlaps(tokens),
}

HASH_CALLS: dict[str, Callable[[BlockTracker, Any], Any]] = {
    "overlaps_of_hashes": lambda tracker, hashes: tracker.overlaps_of_hashes(hashes),
    "store": lambda tracker, hashes: tracker.store("w", hashes),
    "remove": lambda tracker, hashes: tracker.remove("w", hashes),
}

WRONG_WORDS: dict[str, tuple[Any, type[Exception], str]] = {
    "none": (None, TypeError, "{name} must be a buffer of {dtype} or a sequence of int, got NoneType"),
    "int": (5, TypeError, "{name} must be a buffer of {dtype} or a sequence of int, got int"),
    "str": ("abcd", TypeError, "{name} must be a buffer of {dtype} or a sequence of int, got str"),
    "set": ({1, 2}, TypeError, "{name} must be a buffer of {dtype} or a sequence of int, got set"),
    "generator": ((i for i in range(3)), TypeError, "{name} must be .* got generator"),
    "float item": ([1, 2.5], TypeError, r"{name}\[1\] must be int, got float"),
    "str item": ((1, 2, "3"), TypeError, r"{name}\[2\] must be int, got str"),
    "bool item": ([True], TypeError, r"{name}\[0\] must be int, got bool"),
    "bool item of a tuple": ((2, False), TypeError, r"{name}\[1\] must be int, got bool"),
    "endless": (Endless(), ValueError, "{name} must have 16777216 items at most, got more"),
    "long range": (range(10**12), ValueError, "{name} must have 16777216 items at most, got more"),
    "none item": ([None], TypeError, r"{name}\[0\] must be int, got NoneType"),
    "negative": ([1, 2, -3], ValueError, r"{name}\[2\] must be from 0 to {limit}, got -3"),
    "huge": ([2**70], ValueError, r"{name}\[0\] must be from 0 to {limit}, got 1180591620717411303424"),
    "too huge to print": ([1 << 20000], ValueError, r"{name}\[0\] must be from 0 to {limit}, got a huge number"),
    "range below": (range(-1, 3), ValueError, r"{name}\[0\] must be from 0 to {limit}, got -1"),
    "negative i32": (np.array([0, -7], np.int32), ValueError, r"{name}\[1\] must be from 0 to {limit}, got -7"),
    "negative i64": (np.array([-7], np.int64), ValueError, r"{name}\[0\] must be from 0 to {limit}, got -7"),
    "negative array": (array.array("i", [1, -2]), ValueError, r"{name}\[1\] must be from 0 to {limit}, got -2"),
    "float array": (np.array([1.0]), TypeError, "{name} must be a buffer of .*, got an array of float64"),
    "i16 array": (np.array([1], np.int16), TypeError, "{name} must be a buffer of .*, got an array of int16"),
    "bool array": (np.array([True]), TypeError, "{name} must be a buffer of .*, got an array of bool"),
    "big-endian": (np.array([1], ">u4"), TypeError, "{name} must be a buffer of .*, got an array of >u4"),
    "two-dimensional": (np.zeros((2, 2), np.uint32), ValueError, "{name} must have one dimension, got 2"),
    "no dimension": (np.array(5, np.uint32), ValueError, "{name} must be a readable buffer of one dimension"),
    "bytearray": (bytearray(8), TypeError, "{name} must be a buffer of .*, got bytearray of format"),
    "half a word": (b"12345", ValueError, "{name} as bytes must be whole little-endian {dtype}, .* got 5 bytes"),
    "raising": ([1, Raising()], ZeroDivisionError, "on purpose"),
}


@pytest.mark.parametrize(("given", "error", "message"), WRONG_WORDS.values(), ids=WRONG_WORDS)
@pytest.mark.parametrize("call", [*TOKEN_CALLS, *HASH_CALLS])
def test_wrong_tokens_and_hashes_are_named(call: str, given: Any, error: type[Exception], message: str) -> None:
    tokens, hashes = (
        {"name": "tokens", "dtype": "uint32", "limit": U32},
        {"name": "hashes", "dtype": "uint64", "limit": U64},
    )
    tracker = filled()
    before = tracker.snapshot()
    with pytest.raises(error, match=message.format(**tokens if call in TOKEN_CALLS else hashes)):
        (TOKEN_CALLS | HASH_CALLS)[call](tracker, given)
    assert tracker.snapshot() == before


OVER = [0, 2**32]


@pytest.mark.parametrize("tokens", [np.array(OVER, np.uint64), np.array(OVER, np.int64), OVER, tuple(OVER)])
@pytest.mark.parametrize("call", TOKEN_CALLS)
def test_a_token_over_32_bits_is_refused_with_its_position(call: str, tokens: Any) -> None:
    with pytest.raises(ValueError, match=rf"tokens\[1\] must be from 0 to {U32}, got 4294967296"):
        TOKEN_CALLS[call](filled(), tokens)


CALLS: list[tuple[str, Callable[[Any], Any], type[Exception], str]] = [
    ("worker of record", lambda t: t.record_request([1], 5), TypeError, "worker"),
    ("worker of store", lambda t: t.store(None, [1]), TypeError, "worker"),
    ("worker of remove", lambda t: t.remove(b"w", [1]), TypeError, "worker"),
    ("worker of clear", lambda t: t.clear(1), TypeError, "worker"),
    ("worker of evict", lambda t: t.evict_worker(1, 1), TypeError, "worker"),
    ("worker of remove_worker", lambda t: t.remove_worker(["w"]), TypeError, "worker"),
    ("worker of count", lambda t: t.block_count(1), TypeError, "worker"),
    ("max_blocks below", lambda t: t.evict_worker("w", -1), ValueError, "max_blocks must be from 0 .*, got -1"),
    ("max_blocks type", lambda t: t.evict_worker("w", 1.5), TypeError, "max_blocks must be int, got float"),
    ("among str", lambda t: t.overlaps([1], among="w"), TypeError, "among must be an iterable of str, got one str"),
    ("among int", lambda t: t.overlaps([1], among=5), TypeError, "among must be an iterable of str, got int"),
    ("among item", lambda t: t.find_best_worker([1], among=["w", 5]), TypeError, r"among\[1\] must be str, got int"),
    ("among raising", lambda t: t.overlaps([1], among=Raising()), TypeError, "among must be"),
    ("namespace", lambda t: t.overlaps([1], namespace=5), TypeError, "namespace must be str, Namespace or None, got"),
    ("ttl zero", lambda t: t.record_request([1], "w", ttl_s=0), ValueError, "ttl_s must be more than 0 .*, got 0"),
    ("ttl below", lambda t: t.record_request([1], "w", ttl_s=-1), ValueError, "ttl_s must be more than 0 .*, got -1"),
    ("ttl nan", lambda t: t.record_request([1], "w", ttl_s=float("nan")), ValueError, "ttl_s .*, got NaN"),
    ("ttl inf", lambda t: t.record_request([1], "w", ttl_s=float("inf")), ValueError, "ttl_s .*, got inf"),
    ("ttl type", lambda t: t.record_request([1], "w", ttl_s="1"), TypeError, "ttl_s"),
    ("parent type", lambda t: t.store("w", [1], parent="1"), TypeError, "parent must be int, got str"),
    ("parent below", lambda t: t.store("w", [1], parent=-1), ValueError, "parent must be from 0 .*, got -1"),
    ("medium type", lambda t: t.store("w", [1], medium=1), TypeError, "medium"),
    ("restore str", lambda t: t.restore("x"), TypeError, "data must be bytes, got str"),
    ("restore none", lambda t: t.restore(None), TypeError, "data must be bytes, got NoneType"),
    ("restore clock", lambda t: t.restore(t.snapshot(), clock=5), TypeError, "clock must be callable"),
    ("positional", lambda t: t.store("w", [1], 2), TypeError, "positional argument"),
    ("missing", lambda t: t.record_request([1]), TypeError, "missing 1 required positional argument: 'worker'"),
]


@pytest.mark.parametrize(("call", "error", "message"), [row[1:] for row in CALLS], ids=[row[0] for row in CALLS])
def test_wrong_arguments_are_named_and_change_nothing(
    call: Callable[[Any], Any], error: type[Exception], message: str
) -> None:
    tracker = filled()
    before = tracker.snapshot()
    with pytest.raises(error, match=message):
        call(tracker)
    assert tracker.snapshot() == before
    tracker.validate()


@pytest.mark.parametrize("given", [5, b"x", ["a"]])
def test_wrong_namespaces_are_refused(given: Any) -> None:
    with pytest.raises(TypeError, match="lora"):
        Namespace(given)
    with pytest.raises(TypeError, match="salt"):
        Namespace(salt=given)


@pytest.mark.parametrize(
    ("told", "error", "message"),
    [
        ("now", TypeError, "clock must return seconds, got str"),
        (-1.0, ValueError, "clock must return seconds from 0 .*, got -1"),
        (float("nan"), ValueError, "clock must return seconds .*NaN"),
        (float("inf"), ValueError, "clock must return seconds .*inf"),
    ],
)
def test_a_wrong_clock_is_named(told: Any, error: type[Exception], message: str) -> None:
    tracker = BlockTracker(block_size=1, clock=lambda: told)
    with pytest.raises(error, match=message):
        tracker.record_request([1], "w", ttl_s=1)
    assert tracker.record_request([1], "w") == 1, "the clock is not asked without a time to live"


def test_the_error_of_a_clock_comes_through_and_a_clock_may_use_the_tracker() -> None:
    def broken() -> float:
        raise ZeroDivisionError("on purpose")

    with pytest.raises(ZeroDivisionError, match="on purpose"):
        BlockTracker(block_size=1, clock=broken).record_request([1], "w", ttl_s=1)
    trackers: list[BlockTracker] = []

    def curious() -> float:
        assert trackers[0].overlaps_of_hashes([1]) == {}
        return 1.0

    trackers.append(BlockTracker(block_size=1, clock=curious))
    assert trackers[0].record_request([1, 2], "w", ttl_s=1) == 2
