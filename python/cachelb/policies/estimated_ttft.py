"""The earliest first token by estimate."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from cachelb.policies.base import BuiltinPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from cachelb.policies.base import Clock, Key


class EstimatedTtft(BuiltinPolicy):
    """Queue plus prefill in milliseconds, the lowest of all workers: Mooncake's Algorithm 1.

    A worker's queue is the sum of the estimates of its requests without a first token, less the time the first of them
    has been computing: report first tokens (`on_first_token`). If blocks can be sent between workers, one that holds
    little may fetch them. If nobody meets an objective, the earliest worker is taken (`slo-unattainable`) or nobody is.

    Example:
        >>> policy = EstimatedTtft(seed=1, ttft_slo_ms=40)
        >>> first = policy.select_worker(["gpu0", "gpu1"], tokens=range(8000))
        >>> first.on_first_token()
        >>> again = policy.select_worker(["gpu0", "gpu1"], tokens=range(8000))
        >>> first.reason, again.reason, again.worker == first.worker
        ('slo-unattainable', 'prefix', True)
    """

    name: ClassVar[str] = "estimated-ttft"
    needs: ClassVar[frozenset[str]] = frozenset({"tokens"})

    def __new__(
        cls,
        *,
        block_size: int = 16,
        prefill: Sequence[float] = (4.209989e-7, 1.518344e-2, 16.50142),
        can_transfer: bool = False,
        kvcache_balancing_threshold: float = 2.0,
        kv_bytes_per_token: float = 131_072,
        transfer_gbps: float = 100,
        ttft_slo_ms: float | None = None,
        tbt_slo_ms: float | None = None,
        on_slo: Literal["route", "reject"] = "route",
        gate: bool = True,
        load_factor: float = 1.25,
        balance_abs_threshold: Literal["auto"] | float = "auto",
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
            prefill: Milliseconds of a prefill per token squared, per token and per request; fit them to your hardware.
                The default is an 8B model on an A100.
            can_transfer: Whether workers can fetch blocks from each other.
            kvcache_balancing_threshold: How many times longer the best prefix must be to be fetched.
            kv_bytes_per_token: Bytes of one token's keys and values; the default is an 8B model.
            transfer_gbps: Speed of the link between workers in gigabits per second.
            ttft_slo_ms: Longest time to the first token, None for any.
            tbt_slo_ms: Longest time between two tokens, by what engines report, None for any.
            on_slo: What to do if nobody meets them: "route" to the earliest, or "reject".
            gate: Whether a worker with far more requests than the mean is left for the least loaded (`spill`): decoding
                does not show in the estimate. False is the published rule.
            load_factor: A worker is overloaded only above this many times the mean load.
            balance_abs_threshold: A worker is overloaded only above the mean load plus this many requests; "auto" is
                two standard deviations, from 4 to 32.
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
            "prefill": prefill,
            "can_transfer": can_transfer,
            "kvcache_balancing_threshold": kvcache_balancing_threshold,
            "kv_bytes_per_token": kv_bytes_per_token,
            "transfer_gbps": transfer_gbps,
            "ttft_slo_ms": ttft_slo_ms,
            "tbt_slo_ms": tbt_slo_ms,
            "on_slo": on_slo,
            "gate": gate,
            "load_factor": load_factor,
            "balance_abs_threshold": balance_abs_threshold,
            "max_blocks_per_worker": max_blocks_per_worker,
            "ttl_s": ttl_s,
            "hash_seed": hash_seed,
            "seed": seed,
            "booking_ttl_s": booking_ttl_s,
        }
        return super().__new__(cls, cls.name, options, key=key, clock=clock)
