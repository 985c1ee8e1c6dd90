"""Give every worker prompts of its own range of lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from cachelb.policies.base import BuiltinPolicy

if TYPE_CHECKING:
    from typing import Self

    from cachelb.policies.base import Clock, Key


class LengthBucket(BuiltinPolicy):
    """Prompts of similar length share a worker, so that short ones do not wait behind long ones.

    Meant for prefill workers. The workers, in the order of registration, divide the lengths among them: at first in
    equal parts of `l_max`, later so that each gets an equal part of the tokens that came in. If the workers got too
    unequal parts lately, the one that got least serves (`imbalance`). A worker that is not available is stood in for by
    its neighbours. Requests of unknown length go to the least loaded worker (`no-key`).

    Example:
        >>> policy = LengthBucket(l_max=4096)
        >>> workers = ["gpu0", "gpu1", "gpu2", "gpu3"]
        >>> [policy.select_worker(workers, prompt_tokens=n, dry_run=True).worker for n in (1023, 1024, 9999)]
        ['gpu0', 'gpu1', 'gpu3']
    """

    name: ClassVar[str] = "length-bucket"
    needs: ClassVar[frozenset[str]] = frozenset({"prompt_tokens"})

    def __new__(
        cls,
        *,
        l_max: int = 4096,
        balance_abs_threshold: float = 8192,
        balance_rel_threshold: float = 1.0001,
        bucket_adjust_interval_secs: float = 5,
        seed: int | None = None,
        key: Key = None,
        clock: Clock = None,
        booking_ttl_s: float = 3600,
    ) -> Self:
        """Build the policy.

        Args:
            l_max: Prompt tokens that the first ranges divide among them; the last range is open.
            balance_abs_threshold: The workers' tokens of the latest interval may be this far apart.
            balance_rel_threshold: Further apart, the largest must also be more than this many times the smallest to
                be out of balance.
            bucket_adjust_interval_secs: Seconds that tokens count, and seconds between two cuts. Ranges are cut anew
                when the traffic has doubled or halved.
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
            "l_max": l_max,
            "balance_abs_threshold": balance_abs_threshold,
            "balance_rel_threshold": balance_rel_threshold,
            "bucket_adjust_interval_secs": bucket_adjust_interval_secs,
            "block_size": 16,
            "seed": seed,
            "booking_ttl_s": booking_ttl_s,
        }
        return super().__new__(cls, cls.name, options, key=key, clock=clock)
