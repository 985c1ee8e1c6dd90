"""Where messages end in tokens: by markers, by estimate, by a fixed length."""

from __future__ import annotations

from itertools import accumulate
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.library.index.test_hashing import FORMS
from tests.models.chats import rendered_chats, tokenizer

from cachelb.boundaries import MARKERS, align, estimate, marked, message_boundaries

MARK = MARKERS["chatml"]


def marked_prompt(lengths: list[int], opening: int = 3) -> list[int]:
    """Messages of those lengths, each behind a marker, and the opening of an answer."""
    ids = [7]
    for length in lengths:
        ids += [MARK, *range(1, length)]
    return [*ids, MARK, *range(1, opening)]


# --- markers ---


@pytest.mark.parametrize("form", [FORMS[name] for name in FORMS if name != "ctypes"])
def test_markers_are_found_in_every_form_of_tokens(form: Any) -> None:
    ids = marked_prompt([255, 50, 100, 40])
    assert message_boundaries(form(ids), messages=4) == [256, 304, 400, 432]
    assert marked(form(ids), MARK).tolist() == [256, 306, 406, 446]


@pytest.mark.parametrize(("lengths", "aligned"), [([255, 4, 2], [256]), ([3, 5, 300], [304]), ([15], [16])])
def test_ends_are_aligned_down_and_kept_once(lengths: list[int], aligned: list[int]) -> None:
    ids = marked_prompt(lengths)
    assert message_boundaries(ids, messages=len(lengths)) == aligned


def test_ends_before_the_first_block_leave_the_fixed_prefix() -> None:
    assert message_boundaries(marked_prompt([14], opening=40), messages=1, prefix_token_length=40) == [32]
    assert message_boundaries(marked_prompt([40], opening=9), messages=1, min_prefix_boundary_tokens=60) == [48]
    assert message_boundaries([1] * 9) == []
    # A marker at the edge of a block keeps the block.
    assert message_boundaries([MARK, *range(1, 64), MARK, 1, 2], messages=1) == [64]


def test_another_number_of_markers_is_not_believed() -> None:
    ids = marked_prompt([100, 100])
    injected = [*ids[:50], MARK, *ids[51:]]
    assert message_boundaries(injected, messages=2, prefix_token_length=128) == [128]
    assert message_boundaries(injected, messages=2, char_ends=[400, 800]) == [96, 192]
    assert message_boundaries(injected, messages=3) == [48, 96, 192]


def test_of_an_unknown_number_of_messages_the_most_frequent_marker_is_believed() -> None:
    ids = marked_prompt([100, 100, 100])
    ids[20] = MARKERS["llama3"]
    assert message_boundaries(ids) == [96, 192, 288]
    assert message_boundaries(ids, markers="chatml") == [96, 192, 288]
    assert message_boundaries(ids, markers="llama3") == [128]
    assert message_boundaries([5] * 200, markers=5, messages=199)[-1] == 192


@pytest.mark.parametrize("tokens", [np.zeros((2, 2), dtype=np.uint32), np.zeros(3), "abc", [1, "a"], [1.5]])
def test_tokens_of_another_kind_are_refused(tokens: Any) -> None:
    with pytest.raises(TypeError, match="tokens must be a buffer or a sequence of int"):
        message_boundaries(tokens)


# --- estimates ---


def test_an_estimate_is_in_proportion() -> None:
    assert estimate([400], 250, 1_000).tolist() == [100]
    assert align(estimate([400], 250, 1_000)) == [96]
    assert estimate([], 10).tolist() == []
    assert estimate([0, 0], 10).tolist() == [0, 0]


@given(lengths=st.lists(st.integers(0, 5_000), max_size=20), n_tokens=st.integers(0, 20_000), block=st.integers(1, 64))
def test_estimates_rise_and_stay_within_the_prompt(lengths: list[int], n_tokens: int, block: int) -> None:
    ends = message_boundaries(range(n_tokens), markers=(), char_ends=list(accumulate(lengths)), block_alignment=block)
    assert ends == sorted(set(ends))
    assert all(0 < end <= n_tokens and end % block == 0 for end in ends)


def test_without_character_ends_messages_are_rendered() -> None:
    chat = [{"role": "user", "content": "a" * 900}, {"role": "assistant", "content": "b" * 300}]
    assert message_boundaries(range(400), markers=(), messages=chat) == [288, 400]


def test_estimates_lie_within_two_blocks_of_the_ends_of_a_trained_tokenizer() -> None:
    errors: list[int] = []
    for parts in rendered_chats(15, seed=3):
        exact = [len(tokenizer().encode("".join(parts[: at + 1])).ids) for at in range(len(parts))]
        guess = estimate(list(accumulate(map(len, parts))), exact[-1]).tolist()
        assert guess[-1] == exact[-1]
        errors += [abs(one - other) for one, other in zip(guess, exact, strict=True)][:-1]
    within = [error < 32 for error in errors]
    assert fmean(within) > 0.8, f"{sum(within)} of {len(within)}, the worst by {max(errors)} tokens"
