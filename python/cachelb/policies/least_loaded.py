"""Send a request to the least loaded worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from cachelb.policies.base import BuiltinPolicy

if TYPE_CHECKING:
    from typing import Self

    from cachelb.policies.base import Clock, Key


class LeastLoaded(BuiltinPolicy):
    """The least loaded worker; equal loads go to the one whose last pick is longest ago.

    Loads are divided by the worker's weight.

    Example:
        >>> policy = LeastLoaded(seed=1)
        >>> decisions = [policy.select_worker(["gpu0", "gpu1"]) for _ in range(4)]
        >>> policy.loads()
        {'gpu0': 2, 'gpu1': 2}
        >>> for decision in decisions:
        ...     decision.on_complete()
    """

    name: ClassVar[str] = "least-loaded"

    def __new__(
        cls,
        *,
        load: Literal["inflight", "tokens", "blocks"] = "inflight",
        block_size: int = 16,
        seed: int | None = None,
        key: Key = None,
        clock: Clock = None,
        booking_ttl_s: float = 3600,
    ) -> Self:
        """Build the policy.

        Args:
            load: What counts as load: requests in flight, uncached prompt tokens without a first token, or
                blocks held by requests past it.
            block_size: Tokens per block, for `load="blocks"`.
            seed: Seed of ties and samples, None draws one.
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
            "load": load,
            "block_size": block_size,
            "seed": seed,
            "booking_ttl_s": booking_ttl_s,
        }
        return super().__new__(cls, cls.name, options, key=key, clock=clock)
