"""Arrays of block hashes that know how they were made."""

from __future__ import annotations

import numpy as np


class BlockHashes(np.ndarray[tuple[int], np.dtype[np.uint64]]):
    """Hashes of `hash_blocks`: a selection refuses those of another block size or seed. Lists are not checked.

    `made_with` holds block size, scheme and seed; None if they are not known.
    """

    made_with: tuple[int, str, int] | None = None

    def __array_finalize__(self, source: object) -> None:
        """Copy what is known of the array that this one is a slice of."""
        self.made_with = getattr(source, "made_with", None) if self.dtype == np.uint64 else None
