"""The longest cached prefix, else the lowest load."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from cachelb.policies.base import BuiltinPolicy

if TYPE_CHECKING:
    from typing import Self

    from cachelb.policies.base import Clock, Key


class PrefixCache(BuiltinPolicy):
    """The holder of the longest prefix if it is long enough, the least loaded worker otherwise; a baseline.

    Above `tau` load has no say: every request with a popular prefix goes to the same worker. `cache-aware` is this
    policy with a remedy; so is `gate=True` here.

    Example:
        >>> policy = PrefixCache(seed=1)
        >>> first = policy.select_worker(["gpu0", "gpu1"], tokens=range(100))
        >>> again = policy.select_worker(["gpu0", "gpu1"], tokens=range(100))
        >>> first.reason, again.reason, again.worker == first.worker
        ('cold', 'prefix', True)
    """

    name: ClassVar[str] = "prefix-cache"
    needs: ClassVar[frozenset[str]] = frozenset({"tokens"})

    def __new__(
        cls,
        *,
        block_size: int = 16,
        tau: float = 0.5,
        gate: bool = False,
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
            tau: Share of the prompt's tokens that must be exceeded for a hit; 1 is least loaded.
            gate: Whether an overloaded holder is left for the least loaded worker (`spill`).
            load_factor: A holder is overloaded only above this many times the mean load.
            balance_abs_threshold: A holder is overloaded only above the mean load plus this many requests; "auto" is
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
            "tau": tau,
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
