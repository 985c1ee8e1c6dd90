"""What a replay measured, as values and as one JSON document.

Everything but the wall-clock figures depends on the input and the seed alone, so two runs compare
byte for byte once the section ``wall_clock`` is put aside.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cachelb.sim.lru_bound import HitCount

SCHEMA = 1
"""Version of the JSON document; a new key keeps it, a changed or removed one raises it."""


@dataclass(frozen=True, slots=True)
class WallClock:
    """Real time spent inside `select_worker` calls.

    Attributes:
        decisions_per_s: Calls per second of time spent in them.
        select_p50_us: Median microseconds of a call.
        select_p99_us: 99th percentile.
        replay_s: Seconds of the whole replay of the policy, simulation included.
    """

    decisions_per_s: float
    select_p50_us: float
    select_p99_us: float
    replay_s: float


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """Outcome of one policy.

    Attributes:
        policy: Its name.
        requests: Requests served, one decision each.
        hits: Blocks and tokens that the chosen workers had cached.
        predicted_tokens: Tokens the policy expected to be cached, summed over its decisions.
        hit_vs_bound: Cached tokens over those of the single pool; 0 when the pool has none.
        requests_max_over_mean: Requests of the busiest worker over the mean.
        busy_max_over_mean: The same for occupied time (seconds summed over requests).
        peak_inflight: Most requests running at once in the fleet.
        peak_inflight_worker: Most requests running at once on one worker.
        worker_requests: Requests per worker.
        reasons: Decisions per reason.
        wall_clock: Real time, not part of the comparison.
    """

    policy: str
    requests: int
    hits: HitCount
    predicted_tokens: int
    hit_vs_bound: float
    requests_max_over_mean: float
    busy_max_over_mean: float
    peak_inflight: int
    peak_inflight_worker: int
    worker_requests: tuple[int, ...]
    reasons: dict[str, int]
    wall_clock: WallClock

    @property
    def saved_tokens(self) -> int:
        """Return the prefill tokens that were not computed again."""
        return self.hits.hit_tokens

    def as_dict(self) -> dict[str, Any]:
        """Return the comparable part as JSON values.

        Returns:
            Everything but `wall_clock`.
        """
        return {
            "policy": self.policy,
            "requests": self.requests,
            "blocks": self.hits.blocks,
            "hit_blocks": self.hits.hit_blocks,
            "block_hit_rate": self.hits.block_rate,
            "token_hit_rate": self.hits.token_rate,
            "hit_vs_bound": self.hit_vs_bound,
            "prefill_tokens_saved": self.saved_tokens,
            "predicted_tokens": self.predicted_tokens,
            "requests_max_over_mean": self.requests_max_over_mean,
            "busy_max_over_mean": self.busy_max_over_mean,
            "peak_inflight": self.peak_inflight,
            "peak_inflight_worker": self.peak_inflight_worker,
            "worker_requests": list(self.worker_requests),
            "reasons": dict(sorted(self.reasons.items())),
        }


@dataclass(frozen=True, slots=True)
class Bound:
    """The yardstick: one LRU pool that sees every request.

    Attributes:
        capacity_tokens: Tokens the whole fleet can cache.
        pool: Hits of a pool of that size.
        infinite: Hits of a pool that never drops a block.
    """

    capacity_tokens: int
    pool: HitCount
    infinite: HitCount

    def as_dict(self) -> dict[str, Any]:
        """Return the bound as JSON values.

        Returns:
            Rates, not counts.
        """
        return {
            "capacity_tokens": self.capacity_tokens,
            "block_hit_rate": self.pool.block_rate,
            "token_hit_rate": self.pool.token_rate,
            "infinite_block_hit_rate": self.infinite.block_rate,
            "infinite_token_hit_rate": self.infinite.token_rate,
        }


@dataclass(frozen=True, slots=True)
class Source:
    """What was replayed.

    Attributes:
        name: File name, or the name of the generated workload.
        requests: Number of requests.
        prompt_tokens: Tokens of all prompts.
        output_tokens: Tokens of all answers.
        duration_s: From the first to the last arrival, after speeding up.
        id_tokens: Tokens one hash id of the source stands for.
    """

    name: str
    requests: int
    prompt_tokens: int
    output_tokens: int
    duration_s: float
    id_tokens: int


@dataclass(frozen=True, slots=True)
class Report:
    """All policies on one source.

    Attributes:
        source: What was replayed.
        workers: Size of the fleet.
        kv_tokens: Tokens each worker can cache.
        block_size: Tokens per block.
        seed: Seed of the policies.
        bound: The single-pool yardstick.
        policies: One result each, in the order asked for.
    """

    source: Source
    workers: int
    kv_tokens: int
    block_size: int
    seed: int
    bound: Bound
    policies: tuple[PolicyResult, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON values.

        Returns:
            A document whose only part that differs between equal runs is ``wall_clock``.
        """
        return {
            "schema": SCHEMA,
            "source": asdict(self.source),
            "fleet": {
                "workers": self.workers,
                "kv_tokens_per_worker": self.kv_tokens,
                "block_size": self.block_size,
                "seed": self.seed,
            },
            "bound": self.bound.as_dict(),
            "policies": [result.as_dict() for result in self.policies],
            "wall_clock": {result.policy: asdict(result.wall_clock) for result in self.policies},
        }
