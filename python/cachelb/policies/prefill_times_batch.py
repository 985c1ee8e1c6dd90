"""The lowest product of prefill work and batch size."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from cachelb.policies.base import BuiltinPolicy

if TYPE_CHECKING:
    from typing import Self

    from cachelb.policies.base import Clock, Key


class PrefillTimesBatch(BuiltinPolicy):
    """Prompt tokens to compute times requests in flight, the lowest of all workers.

    The tokens are those queued on the worker and those of this request it does not hold. LMetric's rule: for short
    chats while KV memory has room, and for the prefill side of prefill and decode pairs. Long agents fill KV memory
    with it: in simulations it was 15 times behind the best rule at half load. Near saturation it leaves holders of a
    prefix that are busy, and others compute the prefix again, until all are; `crowding=1` minds only the latter.

    Example:
        >>> policy = PrefillTimesBatch(seed=1)
        >>> first = policy.select_worker(["gpu0", "gpu1"], tokens=range(1600))
        >>> again = policy.select_worker(["gpu0", "gpu1"], tokens=range(1600))
        >>> again.worker == first.worker, again.reason
        (False, 'spill')
        >>> first.on_complete()
        >>> policy.select_worker(["gpu0", "gpu1"], tokens=range(1600)).worker == first.worker
        True
    """

    name: ClassVar[str] = "prefill-times-batch"
    needs: ClassVar[frozenset[str]] = frozenset({"tokens"})

    def __new__(
        cls,
        *,
        crowding: float = 0.0,
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
            crowding: How much those count that a request keeps waiting: what it adds to a worker's tokens counts so
                many times more for each request that waits per worker, and every batch is larger by so many times the
                mean one. 0 is the rule as published.
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
            "crowding": crowding,
            "block_size": block_size,
            "max_blocks_per_worker": max_blocks_per_worker,
            "ttl_s": ttl_s,
            "hash_seed": hash_seed,
            "seed": seed,
            "booking_ttl_s": booking_ttl_s,
        }
        return super().__new__(cls, cls.name, options, key=key, clock=clock)
