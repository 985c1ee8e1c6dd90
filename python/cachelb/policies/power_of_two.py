"""Sample two workers and take the less loaded one."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from cachelb.policies.base import BuiltinPolicy

if TYPE_CHECKING:
    from typing import Self

    from cachelb.policies.base import Clock, Key


class PowerOfTwo(BuiltinPolicy):
    """The less loaded of a few workers drawn at random: nearly as even as asking all of them, and no herding.

    Example:
        >>> policy = PowerOfTwo(seed=1)
        >>> busy = [policy.select_worker(["gpu0"]) for _ in range(9)]
        >>> policy.select_worker(["gpu0", "gpu1"]).worker
        'gpu1'
    """

    name: ClassVar[str] = "power-of-two"

    def __new__(
        cls,
        *,
        choices: int = 2,
        load: Literal["inflight", "expected-wait"] = "inflight",
        seed: int | None = None,
        key: Key = None,
        clock: Clock = None,
        booking_ttl_s: float = 3600,
    ) -> Self:
        """Build the policy.

        Args:
            choices: Workers drawn per request.
            load: How they are compared: requests in flight, or seconds of queued work from engine reports
                (`update_load`); without a report from each of them, requests in flight.
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
            "choices": choices,
            "load": load,
            "block_size": 16,
            "seed": seed,
            "booking_ttl_s": booking_ttl_s,
        }
        return super().__new__(cls, cls.name, options, key=key, clock=clock)
