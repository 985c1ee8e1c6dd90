"""Send a request where most of its prompt is already cached."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Literal

from cachelb.policies.base import BuiltinPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from cachelb.policies.base import Clock, Key


class CacheAware(BuiltinPolicy):
    """Longest cached prefix first, load second; needs no events from the engines.

    The policy remembers where it sent which blocks, up to the size of each worker's cache. A request whose prompt is
    known well enough goes to the least loaded of the workers that hold most of it (`prefix`), unless that worker is
    overloaded: then to the least loaded of all (`spill`), which holds the prompt from then on. Other requests go to
    the least loaded worker (`cold`, `short-prompt`, `no-key`).

    Example:
        >>> policy = CacheAware(seed=1)
        >>> workers = ["gpu0", "gpu1", "gpu2"]
        >>> first = policy.select_worker(workers, tokens=range(100))
        >>> first.reason
        'cold'
        >>> again = policy.select_worker(workers, tokens=range(100))
        >>> again.worker == first.worker, again.reason, again.matched_tokens
        (True, 'prefix', 96)
        >>> first.on_complete(), again.on_complete()
        (None, None)
    """

    name: ClassVar[str] = "cache-aware"
    needs: ClassVar[frozenset[str]] = frozenset({"tokens"})
    option_aliases: ClassVar[Mapping[str, str]] = MappingProxyType({"max_blocks_per_backend": "max_blocks_per_worker"})

    def __new__(
        cls,
        *,
        block_size: int = 16,
        cache_threshold: float = 0.3,
        load_factor: float = 1.25,
        max_blocks_per_worker: int = 100_000,
        max_blocks_per_backend: int | None = None,
        eviction_interval_secs: float = 60,
        balance_abs_threshold: Literal["auto"] | float = "auto",
        min_matched_tokens: int | None = None,
        holder_slack: int = 0,
        overlap_decay: float = 0.0,
        temperature: float = 0.0,
        ttl_s: float | None = None,
        kv_spread: float = 1.0,
        kv_ceiling: float = 1.0,
        index: Literal["blocks", "radix"] = "blocks",
        page_size: int = 1,
        hashing: Literal["chained", "positional"] = "chained",
        matcher: Literal["kary", "binary", "linear"] = "kary",
        hash_seed: int = 1337,
        seed: int | None = None,
        key: Key = None,
        clock: Clock = None,
        booking_ttl_s: float = 3600,
    ) -> Self:
        """Build the policy.

        Args:
            block_size: Tokens per block, as the engines have it.
            cache_threshold: Share of the prompt's full blocks that must be cached for a hit, inclusive.
            load_factor: A holder is overloaded only above this many times the mean load.
            max_blocks_per_worker: Blocks one worker's cache holds; the least recently used leave first.
            max_blocks_per_backend: Another spelling of `max_blocks_per_worker`, used if given.
            eviction_interval_secs: Accepted for configurations that have it; eviction happens with each request.
            balance_abs_threshold: A holder is overloaded only above the mean load plus this many requests; "auto" is
                two standard deviations, from 4 to 32.
            min_matched_tokens: Cached tokens that make a hit whatever their share.
            holder_slack: Blocks a holder may be behind the best one and still be considered.
            overlap_decay: How fast a reported backlog devalues a holder.
            temperature: Above 0, holders are drawn by softmax over their scores instead of taking the best.
            ttl_s: Seconds a placement is believed, None until evicted.
            kv_spread: Spread of the reported KV use above which load decides (`imbalance`); 1 is off.
            kv_ceiling: Reported KV use above which load decides (`imbalance`); 1 is off.
            index: "radix" compares prompts page by page in a tree instead of block by block: for engines that reuse
                parts of blocks, such as SGLang's. `block_size` says nothing then. With pages of one token it takes
                tokens, text and messages, but no `blocks=` and no KV events.
            page_size: Tokens per page of the tree.
            hashing: "chained" is exact; "positional" ignores what comes before a block and is kept for study. With it,
                the blocks of a request that fails before its first token stay credited to the worker.
            matcher: How prefixes are searched; all give the same answer.
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
            "cache_threshold": cache_threshold,
            "load_factor": load_factor,
            "max_blocks_per_worker": max_blocks_per_worker
            if max_blocks_per_backend is None
            else max_blocks_per_backend,
            "eviction_interval_secs": eviction_interval_secs,
            "balance_abs_threshold": balance_abs_threshold,
            "min_matched_tokens": min_matched_tokens,
            "holder_slack": holder_slack,
            "overlap_decay": overlap_decay,
            "temperature": temperature,
            "ttl_s": ttl_s,
            "kv_spread": kv_spread,
            "kv_ceiling": kv_ceiling,
            "index": index,
            "page_size": page_size,
            "hashing": hashing,
            "matcher": matcher,
            "hash_seed": hash_seed,
            "seed": seed,
            "booking_ttl_s": booking_ttl_s,
        }
        return super().__new__(cls, cls.name, options, key=key, clock=clock)
