"""The worker on which a request costs the fleet the least time."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from cachelb.policies.base import BuiltinPolicy

if TYPE_CHECKING:
    from typing import Literal, Self

    from cachelb.policies.base import Clock, Key


class Adaptive(BuiltinPolicy):
    """The worker on which a request costs the fleet the least time, whatever the load, the fleet and the traffic.

    The cost is an estimate in milliseconds: the prefill that waits on the worker and that of the request's own uncached
    tokens; what these push out of the cache; what they delay those that run there; all of it the dearer the less room
    the worker's KV memory has (`kv_blocks` of `Router.add_worker`), divided by the speed that first tokens showed.
    Nothing must be set: without `kv_blocks` KV use is what load reports say, without those it does not count; without
    first tokens all workers are equally fast. Weights other than 1 take the place of measured speeds.

    Example:
        >>> policy = Adaptive(seed=1)
        >>> first = policy.select_worker(["gpu0", "gpu1"], tokens=range(1600))
        >>> first.on_complete()
        >>> again = policy.select_worker(["gpu0", "gpu1"], tokens=range(1600))
        >>> again.worker == first.worker, again.reason
        (True, 'prefix')
    """

    name: ClassVar[str] = "adaptive"
    needs: ClassVar[frozenset[str]] = frozenset({"tokens"})

    def __new__(
        cls,
        *,
        objective: Literal["balanced", "ttft", "e2e"] = "balanced",
        block_size: int = 16,
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
            objective: What is to be short: ``ttft``, the time to first tokens; ``e2e``, that of whole answers, so that
                fewer prompts are computed beside those that generate; ``balanced``, both.
            block_size: Tokens per block, as the engines have it.
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
            "objective": objective,
            "block_size": block_size,
            "max_blocks_per_worker": max_blocks_per_worker,
            "ttl_s": ttl_s,
            "hash_seed": hash_seed,
            "seed": seed,
            "booking_ttl_s": booking_ttl_s,
        }
        return super().__new__(cls, cls.name, options, key=key, clock=clock)
