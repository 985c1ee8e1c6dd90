"""Figures of a run.

Throughput and goodput count the steady part of a run: from when a tenth of the time between the
first and the last arrival has passed (warm-up) to the last arrival (what follows only drains). All
else counts the whole run. Latencies are of requests served whole; percentiles interpolate linearly.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cachelb_lab.sim.checks import seconds_or_for_ever
from cachelb_lab.sim.result import Status

if TYPE_CHECKING:
    import numpy.typing as npt

    from cachelb_lab.sim.figures.agentic import SessionFigures
    from cachelb_lab.sim.figures.lru_bound import HitCount
    from cachelb_lab.sim.result import SimResult

    Floats = npt.NDArray[np.float64]

WARM_UP_SHARE = 0.1
"""Part of the time between the first and the last arrival that throughput leaves out."""

_PERCENTILES = (50, 90, 99)
_RUNNING, _WAITING, _QUEUED_TOKENS, _KV_USE = range(4)
_UNITS_S = {"ms": 1e-3, "s": 1.0}


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Summary of a distribution; NaN throughout where there is no value."""

    mean: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Floats) -> Quantiles:
        """Compute mean and percentiles.

        Example:
            >>> Quantiles.of(np.array([1.0, 2.0, 3.0]))
            Quantiles(mean=2.0, p50=2.0, p90=2.8, p99=2.98)
        """
        if not len(values):
            return cls(*[float("nan")] * 4)
        return cls(float(values.mean()), *(float(value) for value in np.percentile(values, _PERCENTILES)))


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits that a good request keeps.

    Attributes:
        ttft_s: Most seconds to the first token.
        tpot_s: Most seconds per token after it.

    Raises:
        ValueError: A limit is not positive.
    """

    ttft_s: float = float("inf")
    tpot_s: float = float("inf")

    def __post_init__(self) -> None:
        seconds_or_for_ever("ttft_s", self.ttft_s)
        seconds_or_for_ever("tpot_s", self.tpot_s)

    @classmethod
    def parse(cls, text: str) -> Slo:
        """Read limits from their short form.

        Args:
            text: ``ttft=TIME``, ``tpot=TIME`` or both with a comma; a time in seconds, or with ``ms``.

        Returns:
            The limits.

        Raises:
            ValueError: The text has another form.

        Example:
            >>> Slo.parse("ttft=0.5,tpot=50ms")
            Slo(ttft_s=0.5, tpot_s=0.05)
        """
        limits: dict[str, float] = {}
        for part in text.split(","):
            key, _, value = part.strip().partition("=")
            if key not in ("ttft", "tpot") or f"{key}_s" in limits:
                raise ValueError(f"cannot read {part.strip()!r}; write for example ttft=0.5,tpot=50ms")
            unit = next(unit for unit in ("ms", "s", "") if value.endswith(unit))
            try:
                limits[f"{key}_s"] = float(value.removesuffix(unit)) * _UNITS_S.get(unit, 1.0)
            except ValueError:
                raise ValueError(f"{key} must be a time such as 0.5, 0.5s or 500ms, got {value!r}") from None
        return cls(**limits)


@dataclass(frozen=True, slots=True)
class Imbalance:
    """How unevenly a quantity is spread over the workers; 0 and 1 when it is even, or zero."""

    cov: float  # standard deviation over mean
    max_over_mean: float  # of the worker that has most

    @classmethod
    def of(cls, by_worker: Floats) -> Imbalance:
        """Compute both measures of a value per worker."""
        mean = float(by_worker.mean())
        if not mean:
            return cls(0.0, 1.0)
        return cls(float(by_worker.std()) / mean, float(by_worker.max()) / mean)


@dataclass(frozen=True, slots=True)
class Prediction:
    """Errors of the predicted cached tokens, over requests with a first token."""

    bias_tokens: float  # mean of predicted minus cached
    error_tokens: float  # mean absolute difference
    too_high: float  # share of requests with less cached than predicted
    too_low: float  # share with more


@dataclass(frozen=True, slots=True)
class Metrics:
    """The figures of one run. Seconds are simulated.

    Attributes:
        offered: Requests.
        finished: Those served whole.
        rejected: Those that no worker was found for.
        failed: Those whose workers failed.
        too_long: Those that fit into no cache.
        unfinished: Those that were not over at the end of the run, or never arrived since their parent failed.
        aborted: Those that their clients gave up.
        completed: Finished by offered.
        ttft_s: From arrival to the first token, waiting and network included.
        tpot_s: Per token after the first.
        itl_s: Every gap between two tokens.
        e2e_s: From arrival to the end.
        session_s: From the first arrival of a session to the end of its last request; NaN where there are none.
        goodput_per_s: Requests within the limits that end in the steady part, per second; None without limits.
        attained: Requests within the limits by offered; None without limits.
        input_tokens_per_s: Tokens of prompts whose first token comes in the steady part.
        output_tokens_per_s: Tokens of answers, in the steady part; those after the first are taken to come evenly.
        hit_rate: Cached by all prompt tokens at the first admission, of requests with a first token.
        predicted_rate: Hit rate as predicted when the worker was picked.
        bound_rate: Hit rate of one LRU pool as large as all caches together, over all requests.
        infinite_rate: Hit rate of one cache without limit, over all requests.
        of_bound: Hit rate by bound; None where the pool has no hit.
        prediction: Predicted against actual hits.
        busy: Imbalance of time at work.
        queued: Imbalance of queued prompt tokens, averaged over time.
        requests: Imbalance of requests served.
        preemptions: Requests put back into the queue.
        evicted_blocks: Cached blocks given up.
        retries: Further tries of failed requests.
        running: Requests at work on all workers, averaged over time.
        waiting: Requests in the queues of all workers, averaged over time.
        kv_use: Share of KV in use, over time and workers: mean, p50, p90, p99.
        kv_use_max: The largest.
        reasons: Decisions by reason, the most frequent first.
        end_s: When the last request was over.
        sessions: Sessions beside those of an idle fleet; None where they are not compared.

    Example:
        >>> from cachelb_lab.sim import FleetSpec, build, compare
        >>> comparison = compare(build("rag", seed=1, count=20), FleetSpec.parse("2xh100"), ["random"])
        >>> figures = comparison.cells[0].runs[0].metrics
        >>> figures.offered, figures.finished, figures.ttft_s.p50 <= figures.ttft_s.p99
        (20, 20, True)
    """

    offered: int
    finished: int
    rejected: int
    failed: int
    too_long: int
    unfinished: int
    aborted: int
    completed: float
    ttft_s: Quantiles
    tpot_s: Quantiles
    itl_s: Quantiles
    e2e_s: Quantiles
    session_s: Quantiles
    goodput_per_s: float | None
    attained: float | None
    input_tokens_per_s: float
    output_tokens_per_s: float
    hit_rate: float
    predicted_rate: float
    bound_rate: float
    infinite_rate: float
    of_bound: float | None
    prediction: Prediction
    busy: Imbalance
    queued: Imbalance
    requests: Imbalance
    preemptions: int
    evicted_blocks: int
    retries: int
    running: float
    waiting: float
    kv_use: Quantiles
    kv_use_max: float
    reasons: dict[str, int]
    end_s: float
    sessions: SessionFigures | None

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as JSON values.

        Returns:
            Nested as the attributes are; None for what is not a number.
        """
        return {key: json_value(value) for key, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a run in real time, which differs from run to run."""

    run_s: float
    requests_per_s: float  # by `run_s`
    decisions_per_s: float  # by the seconds spent in selections
    select_p50_us: float
    select_p99_us: float

    @classmethod
    def of(cls, result: SimResult) -> Cost:
        """Summarise the clock readings of a run."""
        clock = result.wall_clock
        took_s = float(clock.select_ns.sum(dtype=np.float64)) / 1e9
        p50, p99 = np.percentile(clock.select_ns, [50, 99]) / 1e3 if len(clock.select_ns) else (0.0, 0.0)
        return cls(
            run_s=clock.run_s,
            requests_per_s=len(result.workload) / clock.run_s if clock.run_s else 0.0,
            decisions_per_s=len(clock.select_ns) / took_s if took_s else 0.0,
            select_p50_us=float(p50),
            select_p99_us=float(p99),
        )


def measure(
    result: SimResult,
    *,
    slo: Slo | None = None,
    bound: HitCount,
    infinite: HitCount,
    sessions: SessionFigures | None = None,
) -> Metrics:
    """Compute the figures of a run.

    `bound` are the hits of one LRU pool as large as the fleet's caches together (`PoolProfile`), `infinite` those of a
    cache without limit.
    """
    offered = len(result.workload)
    good = None if slo is None else _within(result, slo)
    counts: dict[str, Any] = {one.name.lower(): int(np.equal(result.status, one).sum()) for one in Status}
    begun = np.isfinite(result.first_token_s)
    cached = hit_rate(result)
    steady, prompt_tokens = _Steady.of(result), result.workload.prompt_tokens
    served = result.worker[result.worker >= 0]
    by_worker = result.samples.astype(np.float64)
    over_time = by_worker.mean(axis=0) if len(by_worker) else np.zeros((len(result.workers), 4))
    kv_use = by_worker[:, :, _KV_USE].ravel()
    return Metrics(
        offered=offered,
        **(counts | latencies(result)),
        completed=_share(counts["finished"], offered),
        itl_s=Quantiles(*(float(value) for value in result.itl_s)),
        goodput_per_s=None if good is None else steady.per_s(int((good & steady.has(result.finish_s)).sum())),
        attained=None if good is None else _share(int(good.sum()), offered),
        input_tokens_per_s=steady.per_s(int(prompt_tokens[steady.has(result.first_token_s)].sum(dtype=np.int64))),
        output_tokens_per_s=steady.output_per_s(result),
        hit_rate=cached,
        predicted_rate=predicted_rate(result),
        bound_rate=bound.token_rate,
        infinite_rate=infinite.token_rate,
        of_bound=cached / bound.token_rate if bound.token_rate else None,
        prediction=_prediction(result, begun),
        busy=Imbalance.of(result.busy_s),
        queued=Imbalance.of(over_time[:, _QUEUED_TOKENS]),
        requests=Imbalance.of(np.bincount(served, minlength=len(result.workers)).astype(np.float64)),
        preemptions=int(result.worker_preemptions.sum()),
        evicted_blocks=int(result.evicted_blocks.sum()),
        retries=int(result.retries.sum(dtype=np.int64)),
        running=float(over_time[:, _RUNNING].sum()),
        waiting=float(over_time[:, _WAITING].sum()),
        kv_use=Quantiles.of(kv_use),
        kv_use_max=float(kv_use.max()) if len(kv_use) else 0.0,
        reasons=_reasons(result),
        end_s=result.end_s,
        sessions=sessions,
    )


def latencies(result: SimResult) -> dict[str, Any]:
    """Summarise the times of requests and of sessions."""
    return {name: Quantiles.of(getattr(result, name)) for name in ("ttft_s", "tpot_s", "e2e_s", "session_s")}


@dataclass(frozen=True, slots=True)
class _Steady:
    """The part of a run that throughput counts; all of it where all requests arrive at once."""

    begin_s: float
    end_s: float

    @classmethod
    def of(cls, result: SimResult) -> _Steady:
        arrived = result.arrival_s[np.isfinite(result.arrival_s)]
        if not len(arrived):
            return cls(0.0, 0.0)
        first, last = float(arrived.min()), float(arrived.max())
        if first == last:
            return cls(first, max(first, result.end_s))
        return cls(first + WARM_UP_SHARE * (last - first), last)

    def has(self, times: Floats) -> npt.NDArray[np.bool_]:
        """Return which times lie in it; NaN does not."""
        inside: npt.NDArray[np.bool_] = (times >= self.begin_s) & (times <= self.end_s)
        return inside

    def per_s(self, amount: float) -> float:
        """Divide by its length."""
        return amount / (self.end_s - self.begin_s) if self.end_s > self.begin_s else 0.0

    def output_per_s(self, result: SimResult) -> float:
        """Return the tokens that come in it, per second, of requests served whole."""
        whole = result.finished
        first, last = result.first_token_s[whole], result.finish_s[whole]
        rest = result.workload.output_tokens[whole].astype(np.float64) - 1
        overlap = np.clip(np.minimum(last, self.end_s) - np.maximum(first, self.begin_s), 0, None)
        spans = last - first
        spread = np.divide(overlap, spans, out=self.has(last).astype(np.float64), where=spans > 0)
        return self.per_s(float(self.has(first).sum() + (rest * spread).sum()))


def _within(result: SimResult, slo: Slo) -> npt.NDArray[np.bool_]:
    """Return which requests were served whole and within the limits."""
    ttft_s = result.first_token_s - result.arrival_s
    rest = np.maximum(1, result.workload.output_tokens.astype(np.int64) - 1)
    tpot_s = np.where(result.workload.output_tokens > 1, (result.finish_s - result.first_token_s) / rest, 0.0)
    good: npt.NDArray[np.bool_] = result.finished & (ttft_s <= slo.ttft_s) & (tpot_s <= slo.tpot_s)
    return good


def _prediction(result: SimResult, begun: npt.NDArray[np.bool_]) -> Prediction:
    """Compare predicted and actual cached tokens."""
    wrong = result.predicted_tokens[begun].astype(np.int64) - result.cached_tokens[begun]
    if not len(wrong):
        return Prediction(0.0, 0.0, 0.0, 0.0)
    return Prediction(
        bias_tokens=float(wrong.mean()),
        error_tokens=float(np.abs(wrong).mean()),
        too_high=float((wrong > 0).mean()),
        too_low=float((wrong < 0).mean()),
    )


def _reasons(result: SimResult) -> dict[str, int]:
    """Count the reasons of requests that were placed."""
    codes = Counter(result.reason[result.worker >= 0].tolist())
    named = sorted(((count, result.reasons[code]) for code, count in codes.items()), key=lambda one: (-one[0], one[1]))
    return {name: count for count, name in named}


def hit_rate(result: SimResult) -> float:
    """Return the share of prompt tokens that were cached at first admission; 0 without a request with a first token."""
    return _of_prompts(result, result.cached_tokens)


def predicted_rate(result: SimResult) -> float:
    """Return the share of prompt tokens that decisions took to be cached, over the same requests."""
    return _of_prompts(result, result.predicted_tokens)


def _of_prompts(result: SimResult, tokens: npt.NDArray[np.uint32]) -> float:
    """Return tokens by prompt tokens, over the requests with a first token."""
    begun = np.isfinite(result.first_token_s)
    prompt_tokens = int(result.workload.prompt_tokens[begun].sum(dtype=np.int64))
    return _share(int(tokens[begun].sum(dtype=np.int64)), prompt_tokens)


def _share(part: int, whole: int) -> float:
    """Return part by whole; 0 of nothing."""
    return part / whole if whole else 0.0


def json_value(value: Any) -> Any:  # noqa: ANN401 - any value of a document
    """Replace NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {key: json_value(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not np.isfinite(value) else value
