"""Send a request where the engines say most of its prompt is cached."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from cachelb.policies.base import BuiltinPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from cachelb.policies.base import Clock, Key


class KvAware(BuiltinPolicy):
    """Longest prefix by the engines' own events first, load second.

    Blocks in host memory, in a shared store or on disk count by their credit. A placement counts at once
    (`enable_speculative`) and for `speculative_ttl_ms` more unless an event confirms it. Without events the policy goes
    by its own placements, as `cache-aware` does; and so it does for text, of which events do not speak (`text-only`).
    Where the picked worker's stream is behind, what it confirmed is doubtful (`stale-events`).

    Example:
        >>> policy = KvAware(seed=1)
        >>> first = policy.select_worker(["gpu0", "gpu1"], tokens=range(100))
        >>> again = policy.select_worker(["gpu0", "gpu1"], tokens=range(100))
        >>> first.reason, again.reason, again.worker == first.worker
        ('cold', 'prefix', True)
    """

    name: ClassVar[str] = "kv-aware"
    needs: ClassVar[frozenset[str]] = frozenset({"tokens"})

    def __new__(
        cls,
        *,
        block_size: int = 16,
        enable_speculative: bool = True,
        speculative_ttl_ms: int = 2000,
        credits: Mapping[str, float] | None = None,  # noqa: A002 - the name of the public contract
        continuation: Literal["longest", "best-credit"] = "longest",
        scoring: Literal["prefix", "cost"] = "prefix",
        load_factor: float = 1.25,
        balance_abs_threshold: Literal["auto"] | float = "auto",
        router_temperature: float = 0.0,
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
            enable_speculative: Whether a placement counts before an event confirms it.
            speculative_ttl_ms: Milliseconds it counts without one.
            credits: What a block is worth by medium, 0 to 1: "gpu" 1.0, "cpu" 0.8, "external" 0.6 and "disk" 0.3 unless
                given.
            continuation: Which medium continues the device's prefix if several do: the longest, which engines load, or
                the one worth most.
            scoring: "prefix" takes the longest prefix, "cost" the lowest product of prefill work and batch size.
            load_factor: A holder is overloaded only above this many times the mean load.
            balance_abs_threshold: A holder is overloaded only above the mean load plus this many requests; "auto" is
                two standard deviations, from 4 to 32.
            router_temperature: Above 0, workers are drawn by softmax over the uncached tokens, or over the cost.
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
            "enable_speculative": enable_speculative,
            "speculative_ttl_ms": speculative_ttl_ms,
            "credits": credits,
            "continuation": continuation,
            "scoring": scoring,
            "load_factor": load_factor,
            "balance_abs_threshold": balance_abs_threshold,
            "router_temperature": router_temperature,
            "max_blocks_per_worker": max_blocks_per_worker,
            "ttl_s": ttl_s,
            "hash_seed": hash_seed,
            "seed": seed,
            "booking_ttl_s": booking_ttl_s,
        }
        return super().__new__(cls, cls.name, options, key=key, clock=clock)
