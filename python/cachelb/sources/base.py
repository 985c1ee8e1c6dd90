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


class LoadSink(Protocol):
    """The receiver of the engines' load, health and facts; `Router.load_sink` is one. Workers are given by key.

    Example:
        >>> from cachelb import Router
        >>> router = Router(["http://gpu0:8000", "http://gpu1:8000"])
        >>> router.load_sink.update_load("http://gpu0:8000", running=3, waiting=0)
        >>> router.stats().workers[0].running
        3.0
    """

    def update_load(
        self,
        worker: str,
        *,
        running: float | None = None,
        waiting: float | None = None,
        queued_tokens: float | None = None,
        kv_usage: float | None = None,
        prefill_tps: float | None = None,
        gen_tps: float | None = None,
        age_s: float | None = None,
        sleep: str | Mapping[int, str] | None = None,
    ) -> None:
        """Replace what the engine of a worker reports about itself; None means unknown, never zero.

        A report that is older than the one before came late, and changes nothing.

        Args:
            worker: The worker or its key.
            running: Requests it computes.
            waiting: Requests that wait in it.
            queued_tokens: Prompt tokens that wait to be computed.
            kv_usage: Fraction of the KV cache in use, 0 to 1.
            prefill_tps: Prompt tokens computed per second.
            gen_tps: Output tokens computed per second.
            age_s: How old this is, in seconds.
            sleep: "awake", "paused" or "asleep", or that by data-parallel rank; None keeps the known state. A worker
                that is not awake is passed over while others are available. One that falls asleep loses what it held.

        Raises:
            UnknownWorkerError: It is not registered.
            TypeError: A value has the wrong type.
            ValueError: A value is NaN, infinite, out of range or no state.
        """
        ...

    def update_health(
        self, worker: str, *, answered: bool, took_s: float | None = None, restarted: bool = False
    ) -> None:
        """Apply the outcome of one health check of a worker, such as a poll of its metrics page.

        Three checks in a row without an answer, and without a token from the worker in between, make it unreachable:
        it is passed over as long as other workers are there. The next answer ends that. `breaker_failures=0` turns it
        off.

        Args:
            worker: The worker or its key.
            answered: Whether it answered at all. Wait longer than a busy worker takes: five seconds or more.
            took_s: Seconds until the answer.
            restarted: Whether it answers as another process than before: its cache is empty, and its failures are over.

        Raises:
            UnknownWorkerError: It is not registered.
            TypeError: A value has the wrong type.
            ValueError: `took_s` is NaN, infinite or negative.

        Example:
            >>> from cachelb import Router
            >>> router = Router(["gpu0", "gpu1"])
            >>> for _ in range(3):
            ...     router.load_sink.update_health("gpu0", answered=False)
            >>> [worker.state for worker in router.stats().workers], router.select_worker(by_load=True).key
            (['unreachable', 'ready'], 'gpu1')
            >>> router.load_sink.update_health("gpu0", answered=True, took_s=0.1)
            >>> router.stats().workers[0].state
            'ready'
        """
        ...

    def learn_worker(
        self,
        worker: str,
        *,
        kv_blocks: int | None = None,
        block_size: int | None = None,
        retention_interval: int | Literal["all"] | None = None,
        engine: str | None = None,
    ) -> None:
        """Apply a load source's findings about a worker.

        The index of a model keeps the block size it was built with. An engine may have another, if one is a multiple of
        the other: its cached prefixes are credited in whole blocks of both, and its capacity is converted. KV events
        carry the size too and win where they differ; `KvEventStats.mismatch` then names both.

        Args:
            worker: The worker or its key.
            kv_blocks: Blocks its KV cache holds, as its engine counts them.
            block_size: Tokens per block of its engine. None keeps the known value, at first the router's.
            retention_interval: Where the engine of a hybrid model keeps what a prompt resumes with, beside the ends of
                prompts: every so many tokens, 0 for nowhere, or "all". None keeps the known value.
            engine: Program of its engine: "vllm", "sglang" or "tensorrt-llm". None keeps the known value.

        Raises:
            UnknownWorkerError: It is not registered.
            TypeError: An argument has the wrong type.
            ValueError: An argument is out of range, or the engine's block size fits none of the models the worker
                serves; the message names both, and nothing is changed.

        Example:
            >>> from cachelb import Router
            >>> router = Router(["gpu0"], block_size=16)
            >>> router.load_sink.learn_worker("gpu0", kv_blocks=4_000, block_size=32)
            >>> router.select_worker(tokens=range(80)).on_complete()
            >>> router.select_worker(tokens=range(80)).matched_tokens
            64
            >>> router.load_sink.learn_worker("gpu0", block_size=24)
            Traceback (most recent call last):
            ValueError: the engine of worker "gpu0" has blocks of 24 tokens, the router of 16: ...
        """
        ...

    def reset_cache(self, worker: str) -> None:
        """Forget what a worker holds, because its engine restarted or dropped it on request. Its requests stay.

        Args:
            worker: The worker or its key.

        Raises:
            UnknownWorkerError: It is not registered.
        """
        ...


class LoadTarget(Protocol):
    """The interface of a router to load sources; `cachelb.Router` implements it.

    Example:
        >>> from cachelb import Router
        >>> from cachelb.sources import LoadTarget
        >>> target: LoadTarget = Router(["http://gpu0:8000"])
        >>> target.keys()
        ['http://gpu0:8000']
    """

    def keys(self) -> list[str]:
        """Return the keys of the registered workers."""
        ...

    @property
    def load_sink(self) -> LoadSink:
        """Receiver of the reports."""
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
