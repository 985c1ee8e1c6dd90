"""Hashes of text, for prompts that come without tokens."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelb.index import Namespace, hash_text

# Bytes that are equal at many places, in characters of one to four bytes.
TEXTS = st.text(alphabet="aé字😀", max_size=40)


def hexes(hashes: Any) -> list[str]:
    return [f"{int(value):016x}" for value in hashes]


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("".join(map(chr, range(48))), {"chunk_bytes": 16}, "86a7e2497b4a75cf 6643c9a6f7141095 57a8cc8e2d8cd788"),
        ("The quick brown fox jumps over the lazy dog. " * 4, {}, "3651b62adc4d7721 6bffdbca664ee79a"),
        ("é" * 200, {"chunk_bytes": 256}, "8df601390672369d"),
        ("é" * 40, {"namespace": Namespace("adapter-a", salt="tenant-1"), "seed": 7}, "3fca2ae5992984b7"),
        ("x" * 63, {}, ""),
        ("", {}, ""),
    ],
    ids=["ascii", "default-chunk", "long-chunk", "namespace-and-seed", "part-of-a-chunk", "empty"],
)
def test_golden_vectors(text: str, options: dict[str, Any], expected: str) -> None:
    """Computed by the documented rule with python-xxhash 4.1.0. Old vectors never change."""
    assert hexes(hash_text(text, **options)) == expected.split()


@given(TEXTS, TEXTS, st.integers(1, 9))
def test_equal_hashes_mean_equal_leading_bytes(one: str, other: str, chunk_bytes: int) -> None:
    left, right = (hash_text(text, chunk_bytes).tolist() for text in (one, other))
    bytes_of = (one.encode(), other.encode())
    for end, (a, b) in enumerate(zip(left, right, strict=False), start=1):
        same = bytes_of[0][: end * chunk_bytes] == bytes_of[1][: end * chunk_bytes]
        assert (a == b) == same


def test_half_of_a_surrogate_pair_is_refused_by_its_position_without_showing_the_text() -> None:
    with pytest.raises(ValueError, match=r"text\[7\] is half of a surrogate pair") as caught:
        hash_text("secret \ud83d" + "x" * 100)
    assert type(caught.value) is ValueError
    assert "secret" not in repr(caught.value)
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None
