"""The longest cached prefix among workers that are not busier than most."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from cachelb.policies.base import BuiltinPolicy

if TYPE_CHECKING:
    from typing import Self

    from cachelb.policies.base import Clock, Key


class PrefixCacheAndLoad(BuiltinPolicy):
    """The longest prefix among the workers whose load is not far above the mean; as AIBrix does it.

    If any two workers are more than `imbalance_threshold` requests apart, every request goes to the least loaded one
    (`imbalance`), which ends affinity for all of them. `scope="candidate"` asks only the worker that would be picked.

    Example:
        >>> policy = PrefixCacheAndLoad(seed=1)
        >>> first = policy.select_worker(["gpu0", "gpu1"], tokens=range(100))
        >>> first.on_complete()
        >>> policy.select_worker(["gpu0", "gpu1"], tokens=range(100)).reason
        'prefix'
        >>> busy = [policy.select_worker([first.worker]) for _ in range(9)]
        >>> policy.select_worker(["gpu0", "gpu1"], tokens=range(100)).reason
        'imbalance'
    """

    name: ClassVar[str] = "prefix-cache-and-load"
    needs: ClassVar[frozenset[str]] = frozenset({"tokens"})

    def __new__(
        cls,
        *,
        block_size: int = 16,
        imbalance_threshold: float = 8,
        k: float = 1.0,
        scope: Literal["fleet", "candidate"] = "fleet",
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
            imbalance_threshold: Requests two workers may be apart before load alone decides.
            k: Standard deviations above the mean load that a holder may have.
            scope: Whose imbalance counts: "fleet" asks all workers, "candidate" only the chosen one, by `load_factor`
                and `balance_abs_threshold`.
            load_factor: With scope="candidate", a worker is overloaded only above this many times the mean load.
            balance_abs_threshold: With scope="candidate", only above the mean load plus this many requests; "auto" is
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
            "imbalance_threshold": imbalance_threshold,
            "k": k,
            "scope": scope,
            "load_factor": load_factor,
            "balance_abs_threshold": balance_abs_threshold,
            "max_blocks_per_worker": max_blocks_per_worker,
            "ttl_s": ttl_s,
            "hash_seed": hash_seed,
            "seed": seed,
            "booking_ttl_s": booking_ttl_s,
        }
        return super().__new__(cls, cls.name, options, key=key, clock=clock)
