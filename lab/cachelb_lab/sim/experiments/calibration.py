"""Calibration of the cost model against a real engine, from requests that it served one after the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from cachelb.common.arguments import MOST_TOKENS, listed, number, whole
from cachelb_lab.sim.fleet import FleetSpec
from cachelb_lab.sim.simulation import Signals, simulate
from cachelb_lab.sim.timing import Scaled
from cachelb_lab.sim.workloads.workload import make

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from cachelb_lab.sim.fleet import WorkerSpec

    Floats: TypeAlias = NDArray[np.float64]

_FEWEST, _MOST = 3, 10_000
_LEAST_S, _MOST_S = 1e-6, 1e6
_APART_S = 1e5
_SPREADS = 3.0
"""Times the usual deviation beyond which a request is an outlier."""
_DEVIATIONS_PER_SPREAD = 1.4826
_EXACT = 1e-6


@dataclass(frozen=True, slots=True)
class Measurement:
    """One request that an engine served alone.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        cached_tokens: Those of them that the engine had cached, full blocks.
        output_tokens: Tokens of the answer.
        ttft_s: To the first token, measured as near to the engine as possible: the latency of an API in front of it is
            otherwise taken for slow prompts.
        total_s: To the last token.

    Raises:
        TypeError: A value is not a number.
        ValueError: A value is out of range.

    Example:
        >>> Measurement(2_000, 1_600, 100, ttft_s=0.08, total_s=1.9).output_tokens
        100
    """

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft_s: float
    total_s: float

    def __post_init__(self) -> None:
        whole("prompt_tokens", self.prompt_tokens, 1, MOST_TOKENS)
        whole("cached_tokens", self.cached_tokens, 0, self.prompt_tokens)
        whole("output_tokens", self.output_tokens, 1, MOST_TOKENS)
        number("ttft_s", self.ttft_s, least=_LEAST_S, most=_MOST_S)
        number("total_s", self.total_s, least=self.ttft_s, most=_MOST_S)
        if self.output_tokens > 1 and self.total_s - self.ttft_s < _LEAST_S:
            raise ValueError(f"total_s must be more than ttft_s where there are further tokens, got {self.total_s}")


def fit_scale(measured: Sequence[Measurement], worker: WorkerSpec) -> Scaled:
    """Find how much slower than its cost model an engine is.

    Each request is simulated alone on `worker`, with as many prompt tokens cached. One factor is fitted to the times to
    the first token and one to those from there to the end, by least squares of the relative errors. Requests whose
    ratio is more than three times the usual deviation from the median ratio are left out.

    Args:
        measured: About 20 requests; prompts and answers as long as those to be simulated, and of different lengths.
        worker: The worker that served them, as far as known. A scale of its own is replaced.

    Returns:
        The worker's timing with both factors.

    Raises:
        TypeError: `measured` is not a sequence of measurements.
        ValueError: Fewer than three requests, fewer than three answers of two tokens or more, or a request that the
            worker cannot hold.

    Example:
        >>> from dataclasses import replace
        >>> from cachelb_lab.sim import FleetSpec, Measurement, fit_scale
        >>> (worker,) = FleetSpec.parse("l40s")
        >>> measured = [
        ...     Measurement(1_000, 0, 100, ttft_s=0.115, total_s=3.5),
        ...     Measurement(2_000, 0, 200, ttft_s=0.24, total_s=7.1),
        ...     Measurement(4_000, 2_000, 100, ttft_s=0.25, total_s=3.6),
        ... ]
        >>> found = fit_scale(measured, worker)
        >>> 1 < found.prefill < 2, 1 < found.decode < 2
        (True, True)
        >>> calibrated = replace(worker, timing=found)
    """
    rows = listed("measured", measured, _MOST)
    for row in rows:
        if not isinstance(row, Measurement):
            raise TypeError(f"measured must be of Measurement, got {type(row).__name__}")
    answers = np.array([row.output_tokens > 1 for row in rows], dtype=bool)
    if len(rows) < _FEWEST or answers.sum() < _FEWEST:
        raise ValueError(
            f"measured must be {_FEWEST} requests or more with answers of 2 tokens or more, got {len(rows)} and"
            f" {int(answers.sum())} such answers"
        )
    timing = worker.timing.timing if isinstance(worker.timing, Scaled) else worker.timing
    first_s, rest_s = _predicted(rows, replace(worker, timing=timing))
    ttft_s = np.array([row.ttft_s for row in rows])
    total_s = np.array([row.total_s for row in rows])
    return Scaled(timing, _scale(ttft_s, first_s), _scale((total_s - ttft_s)[answers], rest_s[answers]))


def _predicted(rows: Sequence[Measurement], worker: WorkerSpec) -> tuple[Floats, Floats]:
    """Return the seconds to the first token, and from there to the last, of each request alone."""
    size = worker.block_size
    # Each behind one that leaves the wanted prefix in the cache.
    prompts = [tokens for row in rows for tokens in (max(1, row.cached_tokens), row.prompt_tokens)]
    counts = [tokens // size for tokens in prompts]
    hashes = [(at // 2 + 1 << 32) + depth for at, count in enumerate(counts) for depth in range(count)]
    workload = make(
        "alone",
        block_size=size,
        arrival_s=np.arange(len(prompts)) * _APART_S,
        prompt_tokens=prompts,
        output_tokens=[tokens for row in rows for tokens in (1, row.output_tokens)],
        hashes=np.array(hashes, dtype=np.uint64),
        offsets=np.concatenate([[0], np.cumsum(counts)]),
    )
    alone = replace(worker, prefix_caching=True, prefill_only=False, role="both", slowdown=())
    silent = Signals(net_delay_s=0.0, scrape_interval_s=float("inf"))
    result = simulate(
        workload, FleetSpec((alone,)), "round-robin", signals=silent, retries=0, sample_interval_s=float("inf")
    )
    served = result.finished[1::2]
    if not served.all():
        row = rows[int(np.flatnonzero(~served)[0])]
        raise ValueError(f"the cache of the worker, {worker.cache_tokens} tokens, cannot hold {row}")
    first_s, finish_s = result.first_token_s[1::2], result.finish_s[1::2]
    return first_s - result.arrival_s[1::2], finish_s - first_s


def _scale(measured_s: Floats, predicted_s: Floats) -> float:
    """Return the factor on predictions with the least squares of relative errors, outliers left out."""
    ratio = measured_s / predicted_s
    middle = np.median(ratio)
    spread = _DEVIATIONS_PER_SPREAD * np.median(np.abs(ratio - middle))
    kept = np.abs(ratio - middle) <= max(_SPREADS * spread, _EXACT * middle)
    share = predicted_s[kept] / measured_s[kept]
    (scale,), *_ = np.linalg.lstsq(share[:, None], np.ones(len(share)), rcond=None)
    return float(scale)
