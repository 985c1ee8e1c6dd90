"""Samples to learn from, out of decision records.

A record holds what was known of the request, and how long it took, but not what the worker looked like. What a router
knows of a worker by itself follows from the requests that were on it: how many, how many tokens of them were still to
be computed, how many were being decoded. What only the engine reports (`running`, `waiting`, `kv_usage`) is 0
throughout, and requests that came to a worker by other routers are not counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cachelb.learned.samples import FEATURES, Samples

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from cachelb.types import DecisionRecord

_MISSING = ("running", "waiting", "kv_usage")


def samples_of(records: Iterable[DecisionRecord]) -> Samples:
    """Make samples of the requests that have a time to the first token, in the order of their decisions.

    Args:
        records: Finished requests in any order. Those without a first token are part of their worker's load, but no
            samples. The half of a pair that decodes is left out.

    Returns:
        The samples. The names of devices are unknown.

    Example:
        >>> import cachelb
        >>> from cachelb.records.samples import samples_of
        >>> samples_of([]).missing
        ('running', 'waiting', 'kv_usage')
    """
    kept = sorted((record for record in records if record.part != "decode"), key=lambda record: record.time_s)
    columns = {name: np.zeros(len(kept)) for name in FEATURES}
    start = np.array([record.time_s for record in kept])
    prompt = np.array([record.prompt_tokens for record in kept], float)
    matched = np.minimum([record.matched_tokens for record in kept], prompt)
    columns["input_tokens"] = prompt
    columns["uncached_tokens"] = prompt - matched
    columns["kv_hit_ratio"] = np.divide(matched, prompt, out=np.zeros(len(kept)), where=prompt > 0)
    ttft = np.array([np.nan if record.ttft_s is None else record.ttft_s for record in kept])
    lasted = np.array([0.0 if record.duration_s is None else record.duration_s for record in kept])
    first = start + np.where(np.isnan(ttft), lasted, ttft)
    end = np.maximum(first, start + lasted)
    keys = np.array([record.key for record in kept])
    for key in np.unique(keys):
        on = keys == key
        columns["inflight"][on] = _between(start[on], start[on], end[on], np.ones(int(on.sum())))
        columns["prefill_tokens"][on] = _between(start[on], start[on], first[on], (prompt - matched)[on])
        columns["decode_tokens"][on] = _between(start[on], first[on], end[on], prompt[on])
    useful = np.flatnonzero(~np.isnan(ttft))
    features = np.stack([columns[name][useful] for name in FEATURES], axis=1).astype(np.float32)
    return Samples(features, [None] * len(useful), ttft[useful].astype(np.float32), _MISSING)


def _between(
    at: NDArray[np.float64], begin: NDArray[np.float64], end: NDArray[np.float64], amount: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Sum for each time the amounts that have begun before it and not ended before it."""

    def before(when: NDArray[np.float64]) -> NDArray[np.float64]:
        order = np.argsort(when, kind="stable")
        totals = np.concatenate([[0.0], np.cumsum(amount[order])])
        sums: NDArray[np.float64] = totals[np.searchsorted(when[order], at)]
        return sums

    return before(begin) - before(end)
