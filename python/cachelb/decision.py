"""Decisions: the result of a selection, which owns a booking until the request ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from cachelb._core import Decision
from cachelb.tracking import TrackedIterator, TrackedStream

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from cachelb._core import Router
    from cachelb.answers import Usage
    from cachelb.types import Outcome, Tokens

__all__ = ["Decision", "PairDecision"]

T = TypeVar("T")
W = TypeVar("W")


class PairDecision(Generic[W]):
    """A decode worker and, unless it does the prefill itself, a prefill worker.

    Usage: forward the prompt to `prefill.worker`, call `on_prefilled()` when it answers, then forward to
    `decode.worker` and report as for a single decision. From the time until `on_prefilled`, `adaptive` learns the
    speed of prefill workers.

    Attributes:
        prefill: Decision for the prefill half, None if the decode worker does the whole request.
        decode: Decision for the decode half.

    Example:
        >>> from cachelb import Pairs, Router
        >>> router = Router(pairs=Pairs(uncached_token_threshold=256))
        >>> router.add_worker("p0", role="prefill")
        >>> router.add_worker("d0", role="decode")
        >>> pair = router.select_pair(tokens=range(4096))
        >>> pair.prefill.worker, pair.decode.worker
        ('p0', 'd0')
        >>> pair.on_prefilled()
        >>> pair.on_first_token()
        >>> pair.on_complete()
    """

    __slots__ = ("_failed", "_router", "decode", "prefill")

    def __init__(self, prefill: Decision[W] | None, decode: Decision[W], router: Router[W]) -> None:
        """Build a pair.

        Args:
            prefill: Decision for the prefill half.
            decode: Decision for the decode half.
            router: The router that picked them, and picks again.
        """
        self.prefill = prefill
        self.decode = decode
        self._router = router
        self._failed: Decision[W] | None = None

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of the decode decision, and the prefill worker's key."""
        headers = dict(self.decode.headers)
        if self.prefill is not None:
            headers["x-cachelb-prefill-worker"] = self.prefill.headers["x-cachelb-worker"]
        return headers

    def on_prefilled(self) -> None:
        """Report that the prefill worker is done, which releases its load."""
        if self.prefill is not None:
            self.prefill.on_complete()

    def on_first_token(self) -> None:
        """Report the first output token; implies `on_prefilled`."""
        self.on_prefilled()
        self.decode.on_first_token()

    def on_tokens(self, n: int) -> None:
        """Report `n` more output tokens."""
        self.on_prefilled()
        self.decode.on_tokens(n)

    def on_complete(
        self,
        *,
        cached_tokens: int | None = None,
        prompt_tokens: int | None = None,
        output_tokens: int | None = None,
        output_ids: Tokens | None = None,
    ) -> None:
        """Report that the request finished, which releases both loads.

        Args:
            cached_tokens: Prompt tokens from the cache, as the prefill worker reports them. A decode worker reports the
                whole prompt, which it received from the prefill worker.
            prompt_tokens: Prompt tokens the engine counted.
            output_tokens: Output tokens the engine counted.
            output_ids: The output tokens themselves, which the decode worker holds.
        """
        if self.prefill is not None:
            self.prefill.on_complete(cached_tokens=cached_tokens, prompt_tokens=prompt_tokens)
            cached_tokens = None
        self.decode.on_complete(
            cached_tokens=cached_tokens,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            output_ids=output_ids,
        )

    def on_response(self, response_id: str) -> None:
        """Report the id of a response that the decode worker stores, as `Decision.on_response`."""
        self.decode.on_response(response_id)

    @property
    def _stores_response(self) -> bool:
        return self.decode._stores_response  # noqa: SLF001 - of this package

    def on_error(self, error_or_status: BaseException | int, *, retry_after_s: float | None = None) -> Outcome:
        """Report that the request failed, which releases both loads. The failure counts for the worker still active.

        Args:
            error_or_status: The exception, or the HTTP status.
            retry_after_s: As for `Decision.on_error`.

        Returns:
            The kind of failure.
        """
        failed, other = self._fail()
        outcome = failed.on_error(error_or_status, retry_after_s=retry_after_s)
        if other is not None:
            other.cancel()
        return outcome

    def cancel(self) -> None:
        """Report that the request was given up, which releases both loads."""
        if self.prefill is not None:
            self.prefill.cancel()
        self.decode.cancel()

    def retry(self) -> PairDecision[W]:
        """Release both and pick another pair, without the worker that failed and those that failed before.

        Returns:
            The new pair.

        Raises:
            NoWorkerAvailable: There is no other pair; this one is released all the same.
            ValueError: The request was completed, cancelled or retried before. Nothing is booked.
        """
        failed, other = self._fail()
        pair = self._router._retry_pair(self._failed or failed, other)  # noqa: SLF001 - the router's half of this
        return PairDecision(*pair, self._router)

    def track(
        self,
        items: AsyncIterable[T],
        *,
        tokens_of: Callable[[T], int] | None = None,
        usage_of: Callable[[Sequence[T]], Usage | None] | None = None,
    ) -> TrackedStream[T]:
        """Iterate over the parts of the decode worker's answer and report from them, as `Decision.track` does.

        Args:
            items: The parts of the answer of the decode worker.
            tokens_of: Counts the tokens of an item; without it every item is one.
            usage_of: Reads the engine's token counts from the last few items.

        Returns:
            An asynchronous iterator over the same items, with `aclose()`.
        """
        return TrackedStream(self, items, tokens_of, usage_of)

    def track_sync(
        self,
        items: Iterable[T],
        *,
        tokens_of: Callable[[T], int] | None = None,
        usage_of: Callable[[Sequence[T]], Usage | None] | None = None,
    ) -> TrackedIterator[T]:
        """Do the same for an iterator that is not asynchronous.

        Args:
            items: The parts of the answer of the decode worker.
            tokens_of: Counts the tokens of an item; without it every item is one.
            usage_of: Reads the engine's token counts from the last few items.

        Returns:
            An iterator over the same items, with `close()`.
        """
        return TrackedIterator(self, items, tokens_of, usage_of)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.on_complete()
        else:
            self.on_error(error)

    def _fail(self) -> tuple[Decision[W], Decision[W] | None]:
        """Return the half at work, which failed, and the other one; the first that failed is tried again."""
        found = self.decode, self.prefill
        if self.prefill is not None and self.prefill.is_open:
            found = self.prefill, self.decode
        if self._failed is None and found[0].is_open:
            self._failed = found[0]
        return found

    def _unread(self) -> None:
        self.decode._unread()  # noqa: SLF001 - a decision of this package

    def __repr__(self) -> str:
        return f"PairDecision(prefill={self.prefill!r}, decode={self.decode!r})"
