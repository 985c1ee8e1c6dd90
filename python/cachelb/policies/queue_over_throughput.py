"""The shortest queue over a fixed throughput."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from cachelb.policies.base import BuiltinPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from cachelb.policies.base import Clock, Key


class QueueOverThroughput(BuiltinPolicy):
    """Requests in flight over a throughput given once; a baseline that the literature calls Mooncake.

    `estimated-ttft` is Mooncake's published algorithm.

    Example:
        >>> policy = QueueOverThroughput(throughput={"gpu0": 3.0, "gpu1": 1.0}, seed=1)
        >>> held = [policy.select_worker(["gpu0", "gpu1"]) for _ in range(2)]
        >>> [decision.worker for decision in held]
        ['gpu0', 'gpu0']
    """

    name: ClassVar[str] = "queue-over-throughput"

    def __new__(
        cls,
        *,
        throughput: float | Mapping[str, float] = 1.0,
        seed: int | None = None,
        key: Key = None,
        clock: Clock = None,
        booking_ttl_s: float = 3600,
    ) -> Self:
        """Build the policy.

        Args:
            throughput: One number for all workers, or by worker key, in any one unit. A worker left out has the mean of
                the others.
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
            "throughput": throughput,
            "seed": seed,
            "booking_ttl_s": booking_ttl_s,
            "block_size": 16,
        }
        return super().__new__(cls, cls.name, options, key=key, clock=clock)
