"""The shortest wait in seconds, from what engines report."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from cachelb.policies.base import BuiltinPolicy

if TYPE_CHECKING:
    from typing import Self

    from cachelb.policies.base import Clock, Key


class LeastExpectedWait(BuiltinPolicy):
    """The worker that would start the request soonest, by its engine's report and what was sent since.

    Feed it with `update_load`: queued tokens (or waiting requests), prompt tokens per second and KV use. Waits are in
    seconds, so workers of unlike speed compare. A worker without a report is judged by its requests in flight; without
    any report all are, and if there are only reports too old to use the reason is `stale-load`.

    Example:
        >>> policy = LeastExpectedWait(seed=1)
        >>> policy.update_load("gpu0", queued_tokens=4_000, prefill_tps=8_000)
        >>> policy.update_load("gpu1", queued_tokens=3_000, prefill_tps=2_000)
        >>> policy.select_worker(["gpu0", "gpu1"], tokens=range(100)).worker
        'gpu0'
    """

    name: ClassVar[str] = "least-expected-wait"
    needs: ClassVar[frozenset[str]] = frozenset({"tokens"})

    def __new__(
        cls,
        *,
        block_size: int = 16,
        kv_pressure_weight: float = 0.15,
        mean_prefill_tokens: float = 1024,
        default_throughput: float = 2000,
        load_check_interval_secs: float = 10,
        max_waiting_requests: int = 0,
        cache_aware: bool = True,
        max_blocks_per_worker: int = 100_000,
        ttl_s: float | None = None,
        hash_seed: int = 1337,
        seed: int | None = None,
        key: Key = None,
        clock: Clock = None,
        booking_ttl_s: float = 3600,
    ) -> Self:
        """Build the policy.

        Args:
            block_size: Tokens per block, as the engines have it.
            kv_pressure_weight: Seconds that a half-full KV cache is worth; grows without bound as it fills.
            mean_prefill_tokens: Tokens of a waiting request where the engine does not count tokens.
            default_throughput: Prompt tokens per second of a worker that neither reported nor showed any.
            load_check_interval_secs: Accepted for configurations that have it; reports come from `update_load` or a
                load source.
            max_waiting_requests: Reported waiting requests at which a worker takes no more; if all are full, none is
                available. 0 is off.
            cache_aware: Whether the request's own uncached tokens count.
            max_blocks_per_worker: Blocks one worker's cache holds; the least recently used leave first.
            ttl_s: Seconds a placement is believed, None until evicted.
            hash_seed: Seed of the block hashes. Hashes given as `blocks=` must have been made with the same one.
            seed: Seed of ties, None draws one.
            key: Function from a worker to its unique name.
            clock: Function that returns monotonic seconds, None is the system's.
            booking_ttl_s: Seconds without a sign of life after which a booking no longer counts as load.

        Returns:
            The policy.

        Raises:
            TypeError: An option has the wrong type.
            ValueError: An option is outside its range.
        """
        options = {
            "block_size": block_size,
            "kv_pressure_weight": kv_pressure_weight,
            "mean_prefill_tokens": mean_prefill_tokens,
            "default_throughput": default_throughput,
            "load_check_interval_secs": load_check_interval_secs,
            "max_waiting_requests": max_waiting_requests,
            "cache_aware": cache_aware,
            "max_blocks_per_worker": max_blocks_per_worker,
            "ttl_s": ttl_s,
            "hash_seed": hash_seed,
            "seed": seed,
            "booking_ttl_s": booking_ttl_s,
        }
        return super().__new__(cls, cls.name, options, key=key, clock=clock)
