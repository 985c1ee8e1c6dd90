"""Send a key around a hash ring to the first worker that has room."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from cachelb.policies.base import BuiltinPolicy

if TYPE_CHECKING:
    from typing import Self

    from cachelb.policies.base import Clock, Key


class ConsistentHash(BuiltinPolicy):
    """A hash ring with bounded loads: routers with the same seed agree on where a key belongs.

    The key is the session, else the first tokens of the prompt. It belongs to the first worker clockwise (`hash`), and
    goes on to the next one that has room (`hash-bounded`) if that worker already has more than its share of the
    requests in flight. Requests without a key go to the least loaded worker (`no-key`).

    Example:
        >>> policy = ConsistentHash()
        >>> workers = ["gpu0", "gpu1", "gpu2"]
        >>> first = policy.select_worker(workers, session="chat-17")
        >>> second = policy.select_worker(workers, session="chat-17")
        >>> first.reason, second.reason, first.worker == second.worker
        ('hash', 'hash-bounded', False)
    """

    name: ClassVar[str] = "consistent-hash"
    needs: ClassVar[frozenset[str]] = frozenset({"session"})

    def __new__(
        cls,
        *,
        vnodes: int = 150,
        epsilon: float | None = 0.25,
        block_size: int = 16,
        prefix_token_count: int = 256,
        seed: int = 1337,
        key: Key = None,
        clock: Clock = None,
        booking_ttl_s: float = 3600,
    ) -> Self:
        """Build the policy.

        Args:
            vnodes: Points on the ring of a worker of weight 1; more make shares more even and the ring larger.
            epsilon: A worker may have this much more than its share of the requests in flight; None never looks at
                the load.
            block_size: Tokens per block; a prompt key is whole blocks.
            prefix_token_count: Leading tokens that make the key of a request without a session.
            seed: Seed of the hash and of ties; routers that must agree share it.
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
            "vnodes": vnodes,
            "epsilon": epsilon,
            "block_size": block_size,
            "prefix_token_count": prefix_token_count,
            "seed": seed,
            "booking_ttl_s": booking_ttl_s,
        }
        return super().__new__(cls, cls.name, options, key=key, clock=clock)
