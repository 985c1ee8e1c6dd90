"""Native core of cachelb."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import GenericAlias, TracebackType
from typing import Any, Generic, Self, TypeAlias, TypeVar, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer, disjoint_base

from cachelb.types import Explanation, Outcome, Reason

__all__ = ["Decision", "NativePolicy"]

_W = TypeVar("_W")

# numpy declares its buffers to type checkers from Python 3.12 on, so its arrays are named here.
_Integers: TypeAlias = Buffer | NDArray[np.integer[Any]] | Sequence[int]

@final
class Decision(Generic[_W]):
    """The chosen worker and its booked load. Every method may be called repeatedly and from any thread."""

    @classmethod
    def __class_getitem__(cls, key: object) -> GenericAlias: ...
    @property
    def worker(self) -> _W:
        """The caller's own object."""
    @property
    def key(self) -> str:
        """Key of the worker."""
    @property
    def id(self) -> str:
        """Identifier of this decision, unique within the process."""
    @property
    def dp_rank(self) -> int | None:
        """Data-parallel rank, or None if the worker has one rank."""
    @property
    def reason(self) -> Reason:
        """Why this worker."""
    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt, 0 if unknown."""
    @property
    def matched_tokens(self) -> int:
        """Prompt tokens the worker is believed to hold in its cache."""
    @property
    def best_matched_tokens(self) -> int:
        """The same of the candidate that holds most."""
    @property
    def cached_tokens(self) -> int | None:
        """Cached tokens the engine reported with `on_complete`, or None."""
    @property
    def headers(self) -> Mapping[str, str]:
        """Headers to send to the worker or back to the client."""
    def on_first_token(self) -> None:
        """Tell that the first output token arrived: the worker's prefill load ends, its decode load begins."""
    def on_tokens(self, n: int) -> None:
        """Tell that `n` more output tokens arrived.

        Raises:
            TypeError: `n` is not an int.
            ValueError: `n` is negative.
        """
    def on_complete(
        self, *, cached_tokens: int | None = None, prompt_tokens: int | None = None, output_tokens: int | None = None
    ) -> None:
        """Tell that the request finished, which releases its load.

        Args:
            cached_tokens: Prompt tokens the engine took from its cache, as it reports them.
            prompt_tokens: Prompt tokens the engine counted.
            output_tokens: Output tokens the engine counted.

        Raises:
            TypeError: A count is not an int.
            ValueError: A count is negative.
        """
    def on_error(self, error_or_status: BaseException | int) -> Outcome:
        """Tell that the request failed, which releases its load.

        Args:
            error_or_status: The exception, or the HTTP status.

        Returns:
            "client" for 4xx, "backpressure" for 429 and 503, "failed" for 5xx and exceptions without a status.

        Raises:
            TypeError: Neither an exception nor an int.
            ValueError: A status below 400 or above 599.
        """
    def cancel(self) -> None:
        """Tell that the request was given up, which releases its load."""
    def retry(self) -> Decision[_W]:
        """Book another worker, none of those tried so far, and release this one.

        The workers and tokens given to `select_worker` are read again.

        Raises:
            NoWorkerAvailable: Every worker was tried or is not ready; this decision is released all the same.
        """
    def explain(self) -> Explanation:
        """Tell what every worker of the list looked like when this one was picked."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> bool: ...

@disjoint_base
class NativePolicy:
    """Native half of a policy: workers, loads, block index and rule."""

    def __new__(
        cls,
        rule: str,
        options: dict[str, Any],
        *,
        key: Callable[[Any], str] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> Self: ...
    def select_worker(
        self,
        workers: Iterable[_W],
        *,
        tokens: _Integers | None = None,
        blocks: _Integers | None = None,
        prompt_tokens: int | None = None,
        session: str | None = None,
        lora: str | None = None,
        cache_salt: str | None = None,
        among: Iterable[object] | None = None,
        exclude: Iterable[object] | None = None,
        dry_run: bool = False,
    ) -> Decision[_W]:
        """Pick a worker, book its load and record the placement, in one step.

        Args:
            workers: Your workers, in any order; each key once.
            tokens: Token ids of the prompt: a buffer of uint32 costs nothing to read, a list of int 1.5 ns a token.
            blocks: Chained hashes of the prompt's full blocks instead, as `hash_blocks` returns them.
            prompt_tokens: Length of the prompt, for `blocks` or if there are no tokens.
            session: Key of the conversation.
            lora: Adapter name; caches of different adapters never match.
            cache_salt: Salt; caches of different salts never match.
            among: Workers or keys to choose from; unknown ones are ignored. None means all.
            exclude: Workers or keys to leave out.
            dry_run: Tell what the next call would pick, and change nothing.

        Returns:
            The decision, which owns the booked load.

        Raises:
            NoWorkerAvailable: The list is empty or nobody in it may be picked.
            TypeError: An argument or a worker has the wrong type, or both tokens and blocks are given.
            ValueError: An argument is out of range, or two workers have the same key.
        """
    def set_ready(self, worker: object, ready: bool) -> None:
        """Mark a worker (or key) ready or not; what it holds stays known."""
    def set_weight(self, worker: object, weight: float) -> None:
        """Set the relative capacity of a worker (or key), 1 by default.

        Raises:
            ValueError: The weight is not finite or not above 0.
        """
    def update_load(
        self,
        worker: object,
        *,
        kv_usage: float | None = None,
        queued_tokens: float | None = None,
        prefill_tps: float | None = None,
    ) -> None:
        """Replace what the engine of a worker (or key) reports about itself; None means unknown.

        Args:
            worker: The worker or its key.
            kv_usage: Fraction of the KV cache in use, 0 to 1.
            queued_tokens: Prompt tokens waiting to be computed.
            prefill_tps: Prompt tokens computed per second.

        Raises:
            ValueError: A value is NaN, infinite or out of range.
        """
    def remove_worker(self, worker: object) -> bool:
        """Forget a worker (or key), its blocks and its load; returns whether it was known."""
    def loads(self) -> dict[str, int]:
        """Requests in flight by worker key."""
    def block_count(self, worker: object = None) -> int:
        """Distinct blocks recorded, for one worker (or key) or for all."""
    @property
    def memory_bytes(self) -> int:
        """Bytes of native memory in use."""
    @property
    def abandoned(self) -> int:
        """Decisions dropped without being ended."""
    def stats(self) -> dict[str, int]:
        """Counts since the policy was made."""
    def validate(self) -> None:
        """Recount everything.

        Raises:
            AssertionError: An internal invariant is broken.
        """
