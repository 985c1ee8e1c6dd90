"""Samples to learn from: features of a request and a worker, and the cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

FEATURES: Final = (
    "kv_hit_ratio",
    "running",
    "waiting",
    "prefill_tokens",
    "decode_tokens",
    "kv_usage",
    "input_tokens",
    "uncached_tokens",
    "inflight",
)
"""Columns of a sample in their order; the first seven are Lodestar's."""


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Samples in the order they were taken.

    Attributes:
        features: One row per sample, columns by `FEATURES`, in natural units.
        gpus: Name of each sample's device, None for an unknown one.
        costs: Cost of each, in seconds to the first token; lower is better.
        missing: Columns that the source does not have, which are 0 throughout.

    Example:
        >>> import numpy as np
        >>> from cachelb.learned import Samples
        >>> samples = Samples(np.zeros((3, 9), np.float32), [None] * 3, np.array([0.1, 0.2, 0.3], np.float32))
        >>> len(samples.take([2, 0])), samples.take([2]).costs.round(1).tolist()
        (2, [0.30000001192092896])
    """

    features: NDArray[np.float32]
    gpus: Sequence[str | None]
    costs: NDArray[np.float32]
    missing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse parts that do not fit."""
        rows = len(self.costs)
        if self.features.shape != (rows, len(FEATURES)):
            raise ValueError(f"features must have shape {(rows, len(FEATURES))}, got {self.features.shape}")
        if len(self.gpus) != rows:
            raise ValueError(f"gpus must have {rows} names, got {len(self.gpus)}")

    def __len__(self) -> int:
        return len(self.costs)

    def take(self, positions: Sequence[int] | NDArray[np.intp]) -> Samples:
        """Select samples.

        Args:
            positions: Their positions, in the wanted order.

        Returns:
            Those samples.
        """
        chosen = np.asarray(positions, np.intp)
        gpus = [self.gpus[at] for at in chosen]
        return Samples(self.features[chosen], gpus, self.costs[chosen], self.missing)
