"""Send a request to the worker that saw the longest beginning of its text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal

from cachelb.policies.base import BuiltinPolicy

if TYPE_CHECKING:
    from typing import Self

    from cachelb.policies.base import Clock, Key


class PrefixAffinity(BuiltinPolicy):
    """Ray Serve's prefix cache affinity: the longest match in a tree of texts, unless queues are too unlike.

    If the longest queue is more than `imbalanced_threshold` requests longer than the shortest, two random workers are
    compared (`imbalance`). Else the tree is asked who saw the longest beginning of the prompt, to the character. If
    that is `match_rate_threshold` of the prompt or more, the worker with the shortest queue among those that saw it
    serves (`prefix`), else the one of which the tree knows the least text (`cold`). A worker far above the mean load is
    left for the least loaded one (`spill`), which holds the prompt from then on. Requests without a prompt go to the
    better of two random workers (`no-key`, `short-prompt`).

    Prompts given as tokens are compared to the token, prompts given as hashes to the block; sizes count four characters
    a token then. `compat="ray"` is Ray's own behaviour: no queue is too long, no gate, and nothing is ever evicted.

    Example:
        >>> policy = PrefixAffinity(seed=1)
        >>> workers = ["gpu0", "gpu1"]
        >>> first = policy.select_worker(workers, tokens=range(10))
        >>> again = policy.select_worker(workers, tokens=[*range(7), 70, 80, 90])
        >>> first.reason, again.reason, again.worker == first.worker
        ('cold', 'prefix', True)
    """

    name: ClassVar[str] = "prefix-affinity"
    needs: ClassVar[frozenset[str]] = frozenset({"tokens"})

    def __new__(
        cls,
        *,
        imbalanced_threshold: float | None = None,
        match_rate_threshold: float = 0.1,
        do_eviction: bool | None = None,
        eviction_threshold_chars: int = 400_000,
        eviction_target_chars: int = 360_000,
        eviction_interval_secs: float = 10,
        compat: Literal["ray"] | None = None,
        gate: bool | None = None,
        load_factor: float = 1.25,
        balance_abs_threshold: Literal["auto"] | float = "auto",
        block_size: int = 16,
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
            imbalanced_threshold: Requests that the longest queue may be longer than the shortest. None is 10, as Ray's
                guide has it, and without limit with `compat="ray"`, as its code has it.
            match_rate_threshold: Share of the prompt that must match, inclusive.
            do_eviction: Whether the tree forgets. None is True, and False with `compat="ray"`: such a tree grows
                without limit.
            eviction_threshold_chars: Characters known of one worker above which the least recently used leave.
            eviction_target_chars: Characters that are left then.
            eviction_interval_secs: Seconds between two looks at the sizes. One at twice the threshold does not wait.
            compat: "ray" for the defaults of Ray Serve.
            gate: Whether a worker with far more requests than the mean is left for the least loaded. None is True, and
                False with `compat="ray"`: then a text that all share may send everything to one worker.
            load_factor: A worker is overloaded only above this many times the mean load.
            balance_abs_threshold: A worker is overloaded only above the mean load plus this many requests; "auto" is
                two standard deviations, from 4 to 32.
            block_size: Tokens per block, as the engines have it.
            max_blocks_per_worker: Blocks one worker's cache holds, which tell how much of a prompt it has
                (`matched_tokens`); the least recently used leave first.
            ttl_s: Seconds such a block is believed, None until evicted.
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
        if compat not in (None, "ray"):
            raise ValueError(f'compat must be "ray" or None, got {compat!r}')
        as_ray = compat == "ray"
        if imbalanced_threshold is None:
            imbalanced_threshold = math.inf if as_ray else 10
        options = {
            "imbalanced_threshold": imbalanced_threshold,
            "match_rate_threshold": match_rate_threshold,
            "do_eviction": not as_ray if do_eviction is None else do_eviction,
            "eviction_threshold_chars": eviction_threshold_chars,
            "eviction_target_chars": eviction_target_chars,
            "eviction_interval_secs": eviction_interval_secs,
            "gate": not as_ray if gate is None else gate,
            "load_factor": load_factor,
            "balance_abs_threshold": balance_abs_threshold,
            "block_size": block_size,
            "max_blocks_per_worker": max_blocks_per_worker,
            "ttl_s": ttl_s,
            "hash_seed": hash_seed,
            "seed": seed,
            "booking_ttl_s": booking_ttl_s,
        }
        return super().__new__(cls, cls.name, options, key=key, clock=clock)
