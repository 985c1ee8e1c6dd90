"""Send requests to the workers in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from cachelb.policies.base import BuiltinPolicy

if TYPE_CHECKING:
    from typing import Self

    from cachelb.policies.base import Clock, Key


class RoundRobin(BuiltinPolicy):
    """The next worker in turn, in the order of registration.

    The turn belongs to workers, not to positions in the list, so a worker that comes and goes does not make the others
    jump. With unequal weights (`set_weight`) turns are smooth: 5:1:1 gives a a b a c a a.

    Example:
        >>> policy = RoundRobin(start="first")
        >>> [policy.select_worker(["gpu0", "gpu1", "gpu2"]).worker for _ in range(4)]
        ['gpu0', 'gpu1', 'gpu2', 'gpu0']
    """

    name: ClassVar[str] = "round-robin"

    def __new__(
        cls,
        *,
        start: Literal["seeded", "first"] = "seeded",
        seed: int | None = None,
        key: Key = None,
        clock: Clock = None,
        booking_ttl_s: float = 3600,
    ) -> Self:
        """Build the policy.

        Args:
            start: Who is first: drawn, so that several routers do not begin alike, or the first registered.
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
            "start": start,
            "block_size": 16,
            "seed": seed,
            "booking_ttl_s": booking_ttl_s,
        }
        return super().__new__(cls, cls.name, options, key=key, clock=clock)
