"""Ends of a prompt's messages in tokens, for `boundaries=` of a selection.

Three ways, the first that works:

1. Chat templates of some models begin every message with a token of its own, `MARKERS`. A template that ends with the
   opening of the answer has one more of them than messages; any other number means that a message holds the marker as
   text or that the template added a message, and the markers are not used.
   2. The end of each message in characters is known, and all tokens are assumed to be equally long.
3. A prefix of fixed length.

Ends are rounded down to whole blocks, the unit of caches; an estimate that is off by a few tokens mostly lands in the
right block.

Example:
    >>> tokens = [128000, *([128006] + [1] * 300), *([128006] + [2] * 45), 128006, 78191, 128007]
    >>> message_boundaries(tokens, messages=2)
    [288, 336]
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from cachelb._core import message_ends
from cachelb.common.arguments import MOST_TOKENS, listed, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy.typing as npt

    from cachelb.types import Tokens

__all__ = ["MARKERS", "align", "estimate", "marked", "message_boundaries"]

MARKERS: Final[Mapping[str, int]] = {"llama3": 128006, "chatml": 151644}
"""Tokens that begin a message: `<|start_header_id|>` of Llama 3, `<|im_start|>` of Qwen's ChatML."""


def message_boundaries(
    tokens: Tokens,
    *,
    markers: Sequence[str | int] | str | int = tuple(MARKERS),
    messages: Sequence[Mapping[str, Any]] | int | None = None,
    char_ends: Sequence[int] | None = None,
    n_chars: int | None = None,
    block_alignment: int = 16,
    min_prefix_boundary_tokens: int = 4,
    prefix_token_length: int = 128,
) -> list[int]:
    """Find where the messages of a tokenized prompt end.

    Args:
        tokens: The token ids, as for `select_worker`.
        markers: Tokens that may begin a message: ids, or keys of `MARKERS`. Several are tried in turn.
        messages: The messages, or their number. Without, markers are trusted in any number, and of
            several the most frequent.
        char_ends: Where each message ends in the rendered prompt, in characters, for templates without markers. Left
            out, the ends in the router's own text of `messages` stand in for them, if these are given.
        n_chars: Length of the rendered prompt; None if the last message ends it.
        block_alignment: Ends are rounded down to a multiple of so many tokens.
        min_prefix_boundary_tokens: Ends before that are left out.
        prefix_token_length: The one end of a prompt of which nothing else is known.

    Returns:
        Rising positions without repetition, none of them 0.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A marker has no such name, a number is out of range, or character ends do not rise up to `n_chars`.

    Example:
        >>> chat = [{"role": "user", "content": "a" * 900}, {"role": "assistant", "content": "b" * 300}]
        >>> message_boundaries(range(400), messages=chat, markers=())
        [288, 400]
        >>> message_boundaries(range(250), char_ends=[400], n_chars=1_000)
        [96]
        >>> message_boundaries(range(250))
        [128]
    """
    if not isinstance(messages, (int, Sequence, type(None))):
        raise TypeError(f"messages must be a list of mappings or how many there are, got {type(messages).__name__}")
    whole("prefix_token_length", prefix_token_length, 0)
    count = messages if isinstance(messages, int) or messages is None else len(messages)
    if count is None and char_ends is not None:
        count = len(char_ends)
    column = _column(tokens)
    length = len(column)
    ends = _by_markers(column, _ids(markers), count)
    if not len(ends) and char_ends is None and messages is not None and not isinstance(messages, int):
        char_ends = message_ends(messages)
        n_chars = None
    if not len(ends) and char_ends is not None:
        ends = estimate(char_ends, length, n_chars)
    aligned = align(ends, block_alignment, min_prefix_boundary_tokens)
    return aligned or align([min(prefix_token_length, length)], block_alignment)


def marked(tokens: Tokens, marker: int) -> npt.NDArray[np.int64]:
    """Find the ends of messages that each begin with a marker.

    Args:
        tokens: The token ids.
        marker: The token.

    Returns:
        Every position of the marker but the first.

    Raises:
        TypeError: `tokens` is neither a buffer nor a sequence of int.

    Example:
        >>> marked([9, 1, 1, 9, 2, 9], 9).tolist()
        [3, 5]
    """
    return np.flatnonzero(_column(tokens) == marker)[1:]


def estimate(char_ends: Sequence[int], n_tokens: int, n_chars: int | None = None) -> npt.NDArray[np.int64]:
    """Estimate where messages end in tokens from where they end in characters.

    Args:
        char_ends: Ends in characters; they must rise.
        n_tokens: Length of the prompt in tokens.
        n_chars: Its length in characters; None if the last message ends it.

    Returns:
        A position for each, rounded down.

    Raises:
        ValueError: The ends do not rise, or reach beyond `n_chars`.

    Example:
        >>> estimate([400, 1_000], 250).tolist()
        [100, 250]
    """
    ends = _positions("char_ends", char_ends)
    if not len(ends):
        return ends
    whole("n_tokens", n_tokens, 0)
    if n_chars is not None:
        whole("n_chars", n_chars, 0)
    total = int(ends[-1]) if n_chars is None else n_chars
    if ends[0] < 0:
        raise ValueError(f"char_ends[0] is {ends[0]}: they must rise from 0 or more")
    if (falls := np.flatnonzero(np.diff(ends) < 0)).size:
        at = falls[0] + 1
        raise ValueError(f"char_ends[{at}] is {ends[at]} behind {ends[at - 1]}: they must rise")
    if ends[-1] > total:
        raise ValueError(f"the last of char_ends is {ends[-1]}, but the prompt has {total} characters")
    return ends * n_tokens // max(total, 1)


def align(ends: npt.ArrayLike, block_alignment: int = 16, min_prefix_boundary_tokens: int = 0) -> list[int]:
    """Round positions down to whole blocks.

    Args:
        ends: Rising positions in tokens.
        block_alignment: Positions are rounded down to multiples of this.
        min_prefix_boundary_tokens: Positions before that are left out.

    Returns:
        The remaining positions, each once and none of them 0.

    Raises:
        ValueError: `block_alignment` is below 1.

    Example:
        >>> align([256, 306, 406, 446]), align([256, 260, 262])
        ([256, 304, 400, 432], [256])
    """
    whole("block_alignment", block_alignment, 1)
    least = whole("min_prefix_boundary_tokens", min_prefix_boundary_tokens, 0)
    positions = _positions("ends", ends)
    positions = positions[positions >= least]
    aligned = (positions - positions % block_alignment).tolist()
    return [end for end in dict.fromkeys(aligned) if end]


def _positions(name: str, ends: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Return positions as a column."""
    if not isinstance(ends, np.ndarray):
        return _integers(name, cast("Any", ends))
    if ends.ndim != 1 or (len(ends) and ends.dtype.kind not in "iu"):
        raise ValueError(f"{name} must be one column of positions, got {ends.ndim} dimensions of {ends.dtype}")
    return ends.astype(np.int64)


def _column(tokens: Tokens) -> npt.NDArray[Any]:
    """Return token ids as an array, without copying a buffer."""
    if isinstance(tokens, bytes):
        return np.frombuffer(tokens, dtype="<u4")
    given: object = tokens
    if isinstance(given, Sequence) and not isinstance(given, str):
        return _integers("tokens", given)
    column = np.asarray(tokens)
    if column.ndim != 1 or (len(column) and column.dtype.kind not in "iu"):
        raise TypeError(f"tokens must be a buffer or a sequence of int, got {type(tokens).__name__}")
    return column


def _integers(name: str, values: Iterable[Any]) -> npt.NDArray[np.int64]:
    """Return whole numbers as a column, in a third of the time that numpy takes."""
    items = listed(name, values, MOST_TOKENS)
    try:
        column = np.frombuffer(array("q", items), dtype=np.int64)
    except TypeError:
        raise TypeError(f"{name} must be a buffer or a sequence of int, got one of another type in it") from None
    except OverflowError:
        raise ValueError(f"{name} must be from 0 to 4294967295, got a huge number") from None
    if bool in set(map(type, items)):
        raise TypeError(f"{name} must be a buffer or a sequence of int, got a bool in it")
    return column


def _ids(markers: Sequence[str | int] | str | int) -> list[int]:
    """Return the ids of markers by name or id."""
    ids = []
    for marker in [markers] if isinstance(markers, (str, int)) else listed("markers", markers):
        if isinstance(marker, str) and marker not in MARKERS:
            raise ValueError(f"there is no marker {marker!r}; there are {', '.join(MARKERS)}, or give its token id")
        ids.append(MARKERS[marker] if isinstance(marker, str) else marker)
    return ids


def _by_markers(tokens: npt.NDArray[Any], markers: Sequence[int], messages: int | None) -> npt.NDArray[np.int64]:
    """Return the ends by the first marker that there are enough of, or none."""
    best = np.empty(0, dtype=np.int64)
    for marker in markers:
        ends = np.flatnonzero(tokens == marker)[1:]
        if messages is not None and len(ends) == messages:
            return ends
        if messages is None and len(ends) > len(best):
            best = ends
    return best
