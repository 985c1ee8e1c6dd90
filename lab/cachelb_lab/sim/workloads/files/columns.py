"""Columns of rows, some of which have several values each: checks and gathering."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

_Unsigned = TypeVar("_Unsigned", np.uint32, np.uint64)


def check_rows(good: npt.NDArray[np.bool_], rule: str, values: npt.NDArray[Any]) -> None:
    """Check a rule that `good` rows keep; the message shows the rule and the value of the first other row."""
    bad = np.flatnonzero(~good)
    if len(bad):
        raise ValueError(f"row {bad[0]}: {rule}, got {values[bad[0]]}")


def runs(
    offsets: npt.NDArray[np.uint64], values: npt.NDArray[np.unsignedinteger[Any]], count: int
) -> npt.NDArray[np.int64]:
    """Return how many values each row has; offsets ascend from 0 to the number of values."""
    ends = offsets.astype(np.int64)
    if len(ends) != count + 1 or ends[0] != 0 or ends[-1] != len(values) or (np.diff(ends) < 0).any():
        raise ValueError(f"offsets must be {count + 1} ascending numbers from 0 to {len(values)}")
    return np.diff(ends)


def check_ends(
    ends: npt.NDArray[np.uint32], offsets: npt.NDArray[np.uint64], prompt_tokens: npt.NDArray[np.uint32]
) -> None:
    """Check that the messages of each row end one behind the other, within the prompt."""
    row = np.repeat(np.arange(len(prompt_tokens)), runs(offsets, ends, len(prompt_tokens)))
    falls = np.flatnonzero((np.diff(ends.astype(np.int64)) < 0) & (np.diff(row) == 0))
    if len(falls):
        raise ValueError(f"row {row[falls[0]]}: boundaries must rise, got {ends[falls[0] + 1]} behind {ends[falls[0]]}")
    beyond = np.flatnonzero(ends > prompt_tokens[row])
    if len(beyond):
        raise ValueError(f"row {row[beyond[0]]}: boundaries must lie in the prompt, got {ends[beyond[0]]}")


def gather(
    values: npt.NDArray[_Unsigned], offsets: npt.NDArray[np.uint64], rows: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[_Unsigned], npt.NDArray[np.uint64]]:
    """Return the values of some rows, and their offsets."""
    begins, ends = offsets[:-1][rows].tolist(), offsets[1:][rows].tolist()
    parts: list[npt.NDArray[_Unsigned]] = [values[begin:end] for begin, end in zip(begins, ends, strict=True)]
    return np.concatenate([values[:0], *parts]), np.cumsum([0, *map(len, parts)]).astype(np.uint64)


def joined_offsets(offsets: Sequence[npt.NDArray[np.uint64]]) -> npt.NDArray[np.uint64]:
    """Return the offsets of columns that stand one behind the other."""
    counts = np.concatenate([np.diff(each.astype(np.int64)) for each in offsets])
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.uint64)
