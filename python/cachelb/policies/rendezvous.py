"""Send a session to the same worker, whoever asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from cachelb.policies.base import BuiltinPolicy

if TYPE_CHECKING:
    from typing import Self

    from cachelb.policies.base import Clock, Key


class Rendezvous(BuiltinPolicy):
    """Highest random weight hashing: routers with the same seed agree without sharing state.

    The key is the session, else the first tokens of the prompt. When a worker leaves, only its keys move; when it
    returns, it gets exactly its old keys back. With `bounded=True`, a worker that already has more than its share of
    the requests in flight is passed over for the next best (`hash-bounded`). Requests without a key go to the least
    loaded worker (`no-key`).

    Example:
        >>> here, there = Rendezvous(), Rendezvous()
        >>> workers = ["gpu0", "gpu1", "gpu2"]
        >>> decision = here.select_worker(workers, session="chat-17")
        >>> decision.worker == there.select_worker(workers[::-1], session="chat-17").worker, decision.reason
        (True, 'hash')
    """

    name: ClassVar[str] = "rendezvous"
    needs: ClassVar[frozenset[str]] = frozenset({"session"})

    def __new__(
        cls,
        *,
        bounded: bool = False,
        epsilon: float = 0.25,
        block_size: int = 16,
        prefix_token_count: int = 256,
        seed: int = 1337,
        key: Key = None,
        clock: Clock = None,
        booking_ttl_s: float = 3600,
    ) -> Self:
        """Build the policy.

        Args:
            bounded: Keep every worker's requests in flight within its share.
            epsilon: How much more than its share a worker may have if `bounded`.
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
            "bounded": bounded,
            "epsilon": epsilon,
            "block_size": block_size,
            "prefix_token_count": prefix_token_count,
            "seed": seed,
            "booking_ttl_s": booking_ttl_s,
        }
        return super().__new__(cls, cls.name, options, key=key, clock=clock)
