"""The result of a selection, which owns one booked load until the request ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from cachelb._core import Decision

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

    from cachelb.types import Outcome

__all__ = ["Decision", "PairDecision"]

W = TypeVar("W")


class PairDecision(Generic[W]):
    """A decode worker and, unless it does the prefill itself, a prefill worker.

    Usage: forward the prompt to `prefill.worker`, call `on_prefilled()`, then forward to `decode.worker` and report as
    for a single decision.

    Attributes:
        prefill: Decision for the prefill half, None if the decode worker does the whole request.
        decode: Decision for the decode half.
    """

    __slots__ = ("decode", "prefill")

    def __init__(self, prefill: Decision[W] | None, decode: Decision[W]) -> None:
        """Keep both."""
        self.prefill = prefill
        self.decode = decode

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of the decode decision, and the prefill worker's key."""
        headers = dict(self.decode.headers)
        if self.prefill is not None:
            headers["x-cachelb-prefill-worker"] = self.prefill.headers["x-cachelb-worker"]
        return headers

    def on_prefilled(self) -> None:
        """Tell that the prefill worker is done, which releases its load."""
        if self.prefill is not None:
            self.prefill.on_complete()

    def on_first_token(self) -> None:
        """Tell that the first output token arrived; implies `on_prefilled`."""
        self.on_prefilled()
        self.decode.on_first_token()

    def on_tokens(self, n: int) -> None:
        """Tell that `n` more output tokens arrived."""
        self.on_prefilled()
        self.decode.on_tokens(n)

    def on_complete(
        self, *, cached_tokens: int | None = None, prompt_tokens: int | None = None, output_tokens: int | None = None
    ) -> None:
        """Tell that the request finished, which releases both loads.

        Args:
            cached_tokens: Prompt tokens from the cache, as the prefill worker reports them. What a decode worker
                reports is the whole prompt, which it got from the prefill worker.
            prompt_tokens: Prompt tokens the engine counted.
            output_tokens: Output tokens the engine counted.
        """
        if self.prefill is None:
            self.decode.on_complete(
                cached_tokens=cached_tokens, prompt_tokens=prompt_tokens, output_tokens=output_tokens
            )
            return
        self.prefill.on_complete(cached_tokens=cached_tokens, prompt_tokens=prompt_tokens)
        self.decode.on_complete(prompt_tokens=prompt_tokens, output_tokens=output_tokens)

    def on_error(self, error_or_status: BaseException | int) -> Outcome:
        """Tell that the request failed, which releases both loads. The worker still at work is the one that failed.

        Args:
            error_or_status: The exception, or the HTTP status.

        Returns:
            What kind of failure it was.
        """
        if self.prefill is None:
            return self.decode.on_error(error_or_status)
        failed, other = (self.prefill, self.decode) if self.prefill.is_open else (self.decode, self.prefill)
        outcome = failed.on_error(error_or_status)
        other.cancel()
        return outcome

    def cancel(self) -> None:
        """Tell that the request was given up, which releases both loads."""
        if self.prefill is not None:
            self.prefill.cancel()
        self.decode.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if self.prefill is not None:
            self.prefill.__exit__(kind, error, traceback)
        return self.decode.__exit__(kind, error, traceback)

    def __repr__(self) -> str:
        return f"PairDecision(prefill={self.prefill!r}, decode={self.decode!r})"
