"""Samples to learn from, out of decision records.

A record holds the known features of the request and of its worker at the decision, and how long it took: the training
data of a learning router.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cachelb.learned.samples import FEATURES, Samples

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from cachelb.types import DecisionRecord

_REPORTED = ("running", "waiting", "kv_usage")
_BOOKED = {"inflight": "inflight", "prefill_tokens": "pending_prefill_tokens", "decode_tokens": "decode_tokens"}


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
