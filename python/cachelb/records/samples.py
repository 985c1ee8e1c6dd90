"""Samples to learn from, out of decision records.

A record holds the known features of the request and of its worker at the decision, and how long it took: the training
data of a learning router. Records of older versions do not hold the worker. What a router knows of it by itself
then follows from the requests that were on it: how many, how many tokens of them were still to be computed, how many
were being decoded, not counting requests that came to it by other routers.
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

    Requests without a first token, and those whose worker had not reported for too long, count as load of their worker
    but give no sample. The half of a pair that decodes is left out. A feature that no record has is 0 throughout and
    named as missing; one that only some have is 0 in the others.
    """
    kept = sorted((record for record in records if record.part != "decode"), key=lambda record: record.time_s)
    columns = _followed(kept)
    for name in _REPORTED:
        columns[name] = np.nan_to_num(_column(kept, name))
    for name, field in _BOOKED.items():
        given = _column(kept, field)
        columns[name] = np.where(np.isnan(given), columns[name], given)
    useful = [at for at, record in enumerate(kept) if record.ttft_s is not None and not record.stale_load]
    features = np.stack([columns[name][useful] for name in FEATURES], axis=1).astype(np.float32)
    costs = np.array([kept[at].ttft_s for at in useful], np.float32)
    missing = tuple(name for name in _REPORTED if all(getattr(kept[at], name) is None for at in useful))
    return Samples(features, [kept[at].gpu for at in useful], costs, missing)


def _column(records: Sequence[DecisionRecord], field: str) -> NDArray[np.float64]:
    """Take one field of all records, NaN where it is None."""
    return np.array([getattr(record, field) for record in records], float)


def _followed(records: Sequence[DecisionRecord]) -> dict[str, NDArray[np.float64]]:
    """Work out the columns that follow from the requests and their times alone."""
    start = np.array([record.time_s for record in records])
    prompt = np.array([record.prompt_tokens for record in records], float)
    credited = _column(records, "credited_tokens")
    matched = np.where(np.isnan(credited), [record.matched_tokens for record in records], credited)
    matched = np.minimum(matched, prompt)
    columns = {name: np.zeros(len(records)) for name in _BOOKED}
    columns["input_tokens"] = prompt
    columns["uncached_tokens"] = np.ceil(prompt - matched)
    columns["kv_hit_ratio"] = np.divide(matched, prompt, out=np.zeros(len(records)), where=prompt > 0)
    ttft, lasted = _column(records, "ttft_s"), np.nan_to_num(_column(records, "duration_s"))
    first = start + np.where(np.isnan(ttft), lasted, ttft)
    end = np.maximum(first, start + lasted)
    keys = np.array([record.key for record in records])
    for key in np.unique(keys):
        on = keys == key
        columns["inflight"][on] = _between(start[on], start[on], end[on], np.ones(int(on.sum())))
        columns["prefill_tokens"][on] = _between(start[on], start[on], first[on], (prompt - matched)[on])
        columns["decode_tokens"][on] = _between(start[on], first[on], end[on], prompt[on])
    return columns


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
