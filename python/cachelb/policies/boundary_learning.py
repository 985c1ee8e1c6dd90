"""Remember where messages ended and who served them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from cachelb.policies.base import BuiltinPolicy

if TYPE_CHECKING:
    from typing import Self

    from cachelb.policies.base import Clock, Key


class BoundaryLearning(BuiltinPolicy):
    """A prefix that ends with a message goes where it was served before.

    When a request is answered, a route is learned at the end of each of its messages: this prefix lies on that worker.
    The deepest route that begins a later prompt decides (`prefix`): the next turn finds the whole conversation, a
    conversation that branches finds its last common message, a new one its system prompt. What was never seen goes to
    a hash ring with bounded loads, by its first message (`hash`, `hash-bounded`). A worker whose load is above
    `load_imbalance_factor` times the lower median plus `load_imbalance_floor` is left for the least loaded one
    (`diverted`), which then is a holder too.

    Where messages end is `boundaries=`; `cachelb.boundaries.message_boundaries` finds that of tokens, and of
    `messages=` it is known. Of a prompt without boundaries, the first `prefix_token_length` tokens are its only route.
    Ends are rounded down to whole blocks, since an engine's cache shares nothing less.

    A route is lost when it was not served for `ttl_s`, when its worker leaves or its cache is reset, and when there are
    more than `max_routes`: then the least recently used goes first, and of one conversation the deepest. A request
    that fails before its first token teaches nothing. `stats()["routes"]` counts them.

    Example:
        >>> policy, workers = BoundaryLearning(), ["gpu0", "gpu1", "gpu2"]
        >>> system, question = list(range(256)), [7] * 50
        >>> first = policy.select_worker(workers, tokens=system + question, boundaries=[256, 306])
        >>> first.on_complete()
        >>> other = policy.select_worker(workers, tokens=system + [9] * 40, boundaries=[256, 296])
        >>> first.reason, other.reason, other.worker == first.worker
        ('hash', 'prefix', True)
    """

    name: ClassVar[str] = "boundary-learning"
    needs: ClassVar[frozenset[str]] = frozenset({"tokens"})

    def __new__(
        cls,
        *,
        block_alignment: int = 16,
        max_routes: int = 100_000,
        ttl_s: float | None = 3600,
        prefix_token_length: int = 128,
        min_prefix_boundary_tokens: int = 4,
        load_imbalance_factor: float | None = 2.0,
        load_imbalance_floor: float = 2,
        epsilon: float | None = 0.25,
        multi_depth: bool = True,
        learn: Literal["served", "original"] = "served",
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
            block_alignment: Boundaries are rounded down to a multiple of so many tokens, at least a whole block.
            max_routes: Routes remembered; as many conversations as times their messages. One takes about 200 bytes.
            ttl_s: Seconds after which a worker that served a prefix is no longer believed to hold it, None for ever.
            prefix_token_length: Tokens that a prompt without boundaries is known by.
            min_prefix_boundary_tokens: Boundaries before that, in whole blocks, are left out.
            load_imbalance_factor: A worker is left only above this many times the lower median load plus the floor;
                None never leaves it.
            load_imbalance_floor: See above; requests in flight.
            epsilon: Slack of the hash ring over the fair share of requests in flight; None never looks at the load.
            multi_depth: Learn at every boundary, not only at the first.
            learn: Whose route a diverted request makes: that of the worker that served it, which becomes a holder
                beside the other, or of the one it was diverted from.
            vnodes: Points on the ring of a worker of weight 1.
            block_size: Tokens per block.
            hash_seed: Seed of the block hashes.
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
            "block_alignment": block_alignment,
            "max_routes": max_routes,
            "ttl_s": ttl_s,
            "prefix_token_length": prefix_token_length,
            "min_prefix_boundary_tokens": min_prefix_boundary_tokens,
            "load_imbalance_factor": load_imbalance_factor,
            "load_imbalance_floor": load_imbalance_floor,
            "epsilon": epsilon,
            "multi_depth": multi_depth,
            "learn": learn,
            "vnodes": vnodes,
            "block_size": block_size,
            "hash_seed": hash_seed,
            "seed": seed,
            "booking_ttl_s": booking_ttl_s,
        }
        return super().__new__(cls, cls.name, options, key=key, clock=clock)
