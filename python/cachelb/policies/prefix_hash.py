"""Send prompts that begin alike to the same worker, by hash."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from cachelb.policies.base import BuiltinPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from cachelb.policies.base import Clock, Key


class PrefixHash(BuiltinPolicy):
    """The head of the prompt picks a worker on a hash ring; an overloaded one is passed over.

    Nothing is remembered about prompts, so routers with the same seed agree without sharing state. The key is the
    session, else the longest of the `cache_boundaries` that the prompt reaches, else its first tokens. The key's
    worker serves (`hash`) unless its load is over both margins. Then the next shorter boundary's worker is tried,
    then the least loaded one (`hash-bounded`). If everybody is as busy, the request stays. Requests without a key go
    to the least loaded worker (`no-key`).

    If every prompt begins with one system prompt longer than `prefix_token_count`, all of them have the same key: set
    boundaries past it.

    Example:
        >>> policy = PrefixHash(cache_boundaries=[512, 2048])
        >>> workers = ["gpu0", "gpu1", "gpu2"]
        >>> system = list(range(512))
        >>> picks = [policy.select_worker(workers, tokens=system + [n] * 100) for n in range(3)]
        >>> len({pick.worker for pick in picks}), picks[0].reason
        (1, 'hash')
    """

    name: ClassVar[str] = "prefix-hash"
    needs: ClassVar[frozenset[str]] = frozenset({"tokens"})

    def __new__(
        cls,
        *,
        prefix_token_count: int = 256,
        load_factor: float = 1.25,
        balance_abs_threshold: float = 10,
        cache_boundaries: Sequence[int] = (),
        vnodes: int = 150,
        block_size: int = 16,
        hash_seed: int = 1337,
        seed: int = 1337,
        key: Key = None,
        clock: Clock = None,
        booking_ttl_s: float = 3600,
    ) -> Self:
        """Build the policy.

        Args:
            prefix_token_count: Leading tokens that make the key of a prompt that reaches no boundary.
            load_factor: A worker is overloaded only above this many times the average load.
            balance_abs_threshold: A worker is overloaded only above the average load plus this many requests.
            cache_boundaries: Lengths in tokens at which prompts are told apart, such as the ends of the system
                prompts; each is rounded down to whole blocks.
            vnodes: Points on the ring of a worker of weight 1.
            block_size: Tokens per block.
            hash_seed: Seed of the block hashes that `cache_boundaries` use.
            seed: Seed of the ring and of ties; routers that must agree share it.
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
            "prefix_token_count": prefix_token_count,
            "load_factor": load_factor,
            "balance_abs_threshold": balance_abs_threshold,
            "cache_boundaries": cache_boundaries,
            "vnodes": vnodes,
            "block_size": block_size,
            "hash_seed": hash_seed,
            "seed": seed,
            "booking_ttl_s": booking_ttl_s,
        }
        return super().__new__(cls, cls.name, options, key=key, clock=clock)
