"""The lowest cost in blocks: prefill to do, less what is cached, and blocks held."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from cachelb.policies.base import BuiltinPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from cachelb.policies.base import Clock, Key


class OverlapCost(BuiltinPolicy):
    """Dynamo's cost function, with its option names and defaults.

    Per worker, in blocks: the prefill queued there and of this request, less what is cached, plus the blocks of the
    prompts in flight, those that several of them share counted once and those of this request not at all. Report first
    tokens (`on_first_token`), or every request counts as prefill until it ends.

    Measured on a conversation trace, a `router_temperature` of 0.5 was slower than round robin: it gives up locality.

    Example:
        >>> policy = OverlapCost(seed=1)
        >>> first = policy.select_worker(["gpu0", "gpu1"], tokens=range(1600))
        >>> first.on_first_token()
        >>> again = policy.select_worker(["gpu0", "gpu1"], tokens=range(1600))
        >>> again.reason, again.worker == first.worker
        ('prefix', True)
    """

    name: ClassVar[str] = "overlap-cost"
    needs: ClassVar[frozenset[str]] = frozenset({"tokens"})
    option_aliases: ClassVar[Mapping[str, str]] = MappingProxyType({"overlap_score_weight": "prefill_load_scale"})

    def __new__(
        cls,
        *,
        block_size: int = 16,
        overlap_score_credit: float = 1.0,
        overlap_score_credit_decay: float = 0.0,
        prefill_load_scale: float = 1.0,
        overlap_score_weight: float | None = None,
        decode_active_request_weight: float = 0.0,
        host_cache_hit_weight: float = 0.75,
        disk_cache_hit_weight: float = 0.25,
        shared_cache_multiplier: float = 0.0,
        router_temperature: float = 0.0,
        router_ttl_secs: float | None = 120,
        router_predicted_ttl_secs: float | None = None,
        max_blocks_per_worker: int = 100_000,
        hash_seed: int = 1337,
        seed: int | None = None,
        key: Key = None,
        clock: Clock = None,
        booking_ttl_s: float = 3600,
    ) -> Self:
        """Build the policy.

        Args:
            block_size: Tokens per block, as the engines have it.
            overlap_score_credit: What a block in device memory saves; above 1 favours holders further.
            overlap_score_credit_decay: How fast prefill queued beyond the least anywhere, in units of the request,
                devalues device blocks.
            prefill_load_scale: What a block of prefill costs.
            overlap_score_weight: The older name of `prefill_load_scale`, used if given.
            decode_active_request_weight: What a request in flight costs.
            host_cache_hit_weight: What a block in host memory saves.
            disk_cache_hit_weight: What a block on disk saves.
            shared_cache_multiplier: What a block in a shared store saves; 0.5 is usual where there is one.
            router_temperature: Above 0, workers are drawn by softmax over their costs, scaled to between 0 and 1.
            router_ttl_secs: Seconds a placement is believed, None until evicted.
            router_predicted_ttl_secs: The same on workers that publish events; None credits nothing there before an
                event confirms it.
            max_blocks_per_worker: Blocks one worker's cache holds; the least recently used leave first.
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
            "overlap_score_credit": overlap_score_credit,
            "overlap_score_credit_decay": overlap_score_credit_decay,
            "prefill_load_scale": prefill_load_scale,
            "overlap_score_weight": overlap_score_weight,
            "decode_active_request_weight": decode_active_request_weight,
            "host_cache_hit_weight": host_cache_hit_weight,
            "disk_cache_hit_weight": disk_cache_hit_weight,
            "shared_cache_multiplier": shared_cache_multiplier,
            "router_temperature": router_temperature,
            "router_ttl_secs": router_ttl_secs,
            "router_predicted_ttl_secs": router_predicted_ttl_secs,
            "max_blocks_per_worker": max_blocks_per_worker,
            "hash_seed": hash_seed,
            "seed": seed,
            "booking_ttl_s": booking_ttl_s,
            "ttl_s": router_ttl_secs,
        }
        return super().__new__(cls, cls.name, options, key=key, clock=clock)
