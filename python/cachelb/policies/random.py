"""Send a request to any worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from cachelb.policies.base import BuiltinPolicy

if TYPE_CHECKING:
    from typing import Self

    from cachelb.policies.base import Clock, Key


class Random(BuiltinPolicy):
    """A worker drawn at random, in proportion to weight (`set_weight`).

    Example:
        >>> policy = Random(seed=1)
        >>> policy.select_worker(["gpu0", "gpu1"]).reason
        'random'
    """

    name: ClassVar[str] = "random"

    def __new__(
        cls,
        *,
        seed: int | None = None,
        key: Key = None,
        clock: Clock = None,
        booking_ttl_s: float = 3600,
    ) -> Self:
        """Build the policy.

        Args:
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
            "block_size": 16,
            "seed": seed,
            "booking_ttl_s": booking_ttl_s,
        }
        return super().__new__(cls, cls.name, options, key=key, clock=clock)
