"""Samples to learn from: features of a request and a worker, and the cost; out of decision records.

A record holds the known features of the request and of its worker at the decision, and how long it took: the training
data of a learning router.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cachelb.learned import FEATURES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from cachelb.types import DecisionRecord

_REPORTED = ("running", "waiting", "kv_usage")
_BOOKED = {"inflight": "inflight", "prefill_tokens": "pending_prefill_tokens", "decode_tokens": "decode_tokens"}


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
        >>> from cachelb_lab.samples import Samples
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


def samples_of(records: Iterable[DecisionRecord]) -> Samples:
    """Make samples of the requests that have a time to the first token, in the order of their decisions.

    Requests whose worker had not reported for too long, the half of a pair that decodes, and records of versions that
    did not keep the worker's state give no sample. A feature that no record has is 0 throughout and named as missing;
    one that only some have is 0 in the others.
    """
    kept = sorted(filter(_is_useful, records), key=lambda record: record.time_s)
    prompt = _column(kept, "prompt_tokens")
    matched = np.minimum(_column(kept, "credited_tokens"), prompt)
    columns = {name: _column(kept, field) for name, field in _BOOKED.items()}
    columns |= {name: np.nan_to_num(_column(kept, name)) for name in _REPORTED}
    columns |= {"input_tokens": prompt, "uncached_tokens": np.ceil(prompt - matched)}
    columns["kv_hit_ratio"] = np.divide(matched, prompt, out=np.zeros(len(kept)), where=prompt > 0)
    features = np.stack([columns[name] for name in FEATURES], axis=1).astype(np.float32)
    missing = tuple(name for name in _REPORTED if all(getattr(record, name) is None for record in kept))
    return Samples(features, [record.gpu for record in kept], _column(kept, "ttft_s").astype(np.float32), missing)


def _is_useful(record: DecisionRecord) -> bool:
    known = record.ttft_s is not None and record.inflight is not None and not record.stale_load
    return known and record.part != "decode"


def _column(records: Sequence[DecisionRecord], field: str) -> NDArray[np.float64]:
    """Take one field of all records, NaN where it is None."""
    return np.array([getattr(record, field) for record in records], float)
