"""Stable 64-bit hashes of numpy columns: the SplitMix64 step and its inverse.

Equal inputs give equal outputs in every process and on every platform: integers only.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]

_WORD = 2**64
_STEP = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def mix(values: U64) -> U64:
    """Apply the SplitMix64 step, a bijection of the 64-bit integers, to a copy.

    Example:
        >>> mix(np.array([0, 1], dtype=np.uint64)).tolist()
        [16294208416658607535, 10451216379200822465]
    """
    values = values.copy()
    mix_in_place(values)
    return values


def mix_in_place(values: U64) -> None:
    """Apply the SplitMix64 step to a column itself, with one temporary.

    Example:
        >>> column = np.array([7], dtype=np.uint64)
        >>> mix_in_place(column)
        >>> column.tolist() == mix(np.array([7], dtype=np.uint64)).tolist()
        True
    """
    values += np.uint64(_STEP)
    values ^= values >> np.uint64(30)
    values *= np.uint64(_FIRST)
    values ^= values >> np.uint64(27)
    values *= np.uint64(_SECOND)
    values ^= values >> np.uint64(31)


def unmix(values: U64) -> U64:
    """Undo `mix`."""
    values = values ^ (values >> np.uint64(31)) ^ (values >> np.uint64(62))
    values *= np.uint64(pow(_SECOND, -1, _WORD))
    values = values ^ (values >> np.uint64(27)) ^ (values >> np.uint64(54))
    values *= np.uint64(pow(_FIRST, -1, _WORD))
    values = values ^ (values >> np.uint64(30)) ^ (values >> np.uint64(60))
    return values - np.uint64(_STEP)
