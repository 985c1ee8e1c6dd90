"""Stay with the workers that hold the prompt until they are saturated."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from cachelb.policies.base import BuiltinPolicy

if TYPE_CHECKING:
    from typing import Self

    from cachelb.policies.base import Clock, Key


class StickyUntilSaturated(BuiltinPolicy):
    """The workers that hold most of the prompt, as long as they answer soon enough; llm-d's affinity filter.

    Only workers that hold `affinity_threshold` of the prompt take part (`sticky`), unless the first token would come
    `max_ttft_penalty_ms` later there than elsewhere (`sticky-broken`). Of those who take part, the one with the fewest
    prompt tokens waiting is picked.

    The penalty is only as good as the throughput: calibrate `peak_prefill_throughput`, or let it be observed.

    Example:
        >>> policy = StickyUntilSaturated(seed=1)
        >>> first = policy.select_worker(["gpu0", "gpu1"], tokens=range(1600))
        >>> again = policy.select_worker(["gpu0", "gpu1"], tokens=range(1600))
        >>> first.reason, again.reason, again.worker == first.worker
        ('cold', 'sticky', True)
    """

    name: ClassVar[str] = "sticky-until-saturated"
    needs: ClassVar[frozenset[str]] = frozenset({"tokens"})

    def __new__(
        cls,
        *,
        block_size: int = 16,
        affinity_threshold: float = 0.8,
        min_matched_tokens: int | None = None,
        exploration_probability: float = 0.0,
        max_ttft_penalty_ms: float = 18_000,
        peak_prefill_throughput: Literal["observed"] | float = 15_928,
        ttft_source: Literal["prefill_throughput", "predictor"] = "prefill_throughput",
        gate: bool = True,
        load_factor: float = 1.25,
        balance_abs_threshold: Literal["auto"] | float = "auto",
        max_blocks_per_worker: int = 100_000,
        ttl_s: float | None = None,
        hash_seed: int = 1337,
        seed: int | None = None,
        key: Key = None,
        clock: Clock = None,
        booking_ttl_s: float = 3600,
    ) -> Self:
        """Build the policy.

        Args:
            block_size: Tokens per block, as the engines have it.
            affinity_threshold: Share of the prompt's blocks that a worker must hold; 0 turns the filter off.
            min_matched_tokens: Cached tokens that suffice whatever their share, for long prompts with a shared head.
            exploration_probability: How often every worker takes part all the same (`explore`).
            max_ttft_penalty_ms: How much later than elsewhere the first token may come; 0 always stays.
            peak_prefill_throughput: Prompt tokens per second of every worker; "observed" uses what each was seen to do.
                The default is a 32B model on two H100.
            ttft_source: Where the time comes from: tokens waiting over the throughput, or "predictor", the estimate of
                `estimated-ttft`.
            gate: Whether a holder with far more requests than the mean is left too (`sticky-broken`); False is llm-d's
                rule.
            load_factor: A holder is overloaded only above this many times the mean load.
            balance_abs_threshold: A holder is overloaded only above the mean load plus this many requests; "auto" is
                two standard deviations, from 4 to 32.
            max_blocks_per_worker: Blocks one worker's cache holds; the least recently used leave first.
            ttl_s: Seconds a placement is believed, None until evicted.
            hash_seed: Seed of the block hashes. Hashes given as `blocks=` must have been made with the same one.
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
            "block_size": block_size,
            "affinity_threshold": affinity_threshold,
            "min_matched_tokens": min_matched_tokens,
            "exploration_probability": exploration_probability,
            "max_ttft_penalty_ms": max_ttft_penalty_ms,
            "peak_prefill_throughput": peak_prefill_throughput,
            "ttft_source": ttft_source,
            "gate": gate,
            "load_factor": load_factor,
            "balance_abs_threshold": balance_abs_threshold,
            "max_blocks_per_worker": max_blocks_per_worker,
            "ttl_s": ttl_s,
            "hash_seed": hash_seed,
            "seed": seed,
            "booking_ttl_s": booking_ttl_s,
        }
        return super().__new__(cls, cls.name, options, key=key, clock=clock)
