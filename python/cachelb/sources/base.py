"""Interfaces of load sources, and the reports they deliver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

Sleep: TypeAlias = Literal["awake", "paused", "asleep"]


@dataclass(frozen=True, slots=True)
class LoadReport:
    """An engine's report of its own load; None stands for a missing value.

    Attributes:
        running: Requests being computed.
        waiting: Requests accepted and not yet scheduled.
        queued_tokens: Prompt tokens of the waiting requests.
        kv_usage: Part of the KV cache that running requests hold, from 0 to 1.
        prefill_tps: Prompt tokens computed per second of work.
        gen_tps: Output tokens per second of work.
        kv_blocks: Blocks the KV cache has, counted in blocks of `block_size`.
        block_size: Tokens per block, as the engine's prefix hashes count them.
        retention_interval: Where the engine of a hybrid model keeps what a prompt resumes with, beside the ends of
            prompts: every so many tokens, 0 for nowhere, or "all".
        sleep: "awake", "paused" while it accepts requests and computes none, or "asleep" with its cache gone too.

    Example:
        >>> from cachelb.sources import LoadReport
        >>> LoadReport(running=3, waiting=0).kv_usage is None
        True
    """

    running: int | None = None
    waiting: int | None = None
    queued_tokens: int | None = None
    kv_usage: float | None = None
    prefill_tps: float | None = None
    gen_tps: float | None = None
    kv_blocks: int | None = None
    block_size: int | None = None
    retention_interval: int | Literal["all"] | None = None
    sleep: Sleep | None = None


class LoadTarget(Protocol):
    """The interface of a router to load sources; `cachelb.Router` implements it.

    Example:
        >>> from cachelb.sources import LoadTarget
        >>> class Printer:
        ...     def keys(self) -> list[str]:
        ...         return ["http://gpu0:8000"]
        ...     def update_load(self, worker, /, **report):
        ...         print(worker, report["running"])
        ...     def learn_worker(self, worker, /, **facts): ...
        >>> target: LoadTarget = Printer()
        >>> target.keys()
        ['http://gpu0:8000']
    """

    def keys(self) -> list[str]:
        """Return the keys of the registered workers."""
        ...

    def update_load(
        self,
        worker: str,
        /,
        *,
        running: int | None = None,
        waiting: int | None = None,
        queued_tokens: int | None = None,
        kv_usage: float | None = None,
        prefill_tps: float | None = None,
        gen_tps: float | None = None,
        age_s: float = 0.0,
        sleep: str | Mapping[int, str] | None = None,
    ) -> None:
        """Apply one load report of a worker.

        Args:
            worker: Key of the worker.
            running: Requests being computed.
            waiting: Requests not yet scheduled.
            queued_tokens: Prompt tokens of the waiting requests.
            kv_usage: Part of the KV cache in use, from 0 to 1.
            prefill_tps: Prompt tokens computed per second of work.
            gen_tps: Output tokens per second of work.
            age_s: Seconds since the engine took these values.
            sleep: Whether it sleeps, as in `LoadReport`, or that by data-parallel rank.

        Raises:
            KeyError: The worker is not registered (any more).
        """
        ...

    def learn_worker(
        self,
        worker: str,
        /,
        *,
        kv_blocks: int | None = None,
        block_size: int | None = None,
        retention_interval: int | Literal["all"] | None = None,
        engine: str | None = None,
    ) -> None:
        """Apply facts about a worker that its engine reports.

        Args:
            worker: Key of the worker.
            kv_blocks: Blocks its KV cache has.
            block_size: Tokens per block.
            retention_interval: Interval at which the engine of a hybrid model keeps states, as in `LoadReport`.
            engine: Program of its engine: "vllm", "sglang" or "tensorrt-llm".

        Raises:
            KeyError: The worker is not registered (any more).
            ValueError: The facts rule the worker out, for example a block size that does not fit the router's.
        """
        ...


class Source(Protocol):
    """A background source for a router, for `Router.attach`.

    `start` and `stop` are called by the router. In a forked child, which has no threads of the parent, `start` is
    called again once the child uses the router.

    Example:
        >>> from cachelb.sources import MetricsSource, Source
        >>> source: Source = MetricsSource()
        >>> source.stop()  # stopping what never started is fine
    """

    def start(self, router: LoadTarget, /) -> None:
        """Start feeding the router.

        Args:
            router: The router to feed.
        """
        ...

    def stop(self) -> None:
        """Stop feeding. Idempotent."""
        ...
