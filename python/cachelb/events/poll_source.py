"""The source of KV cache events that engines do not publish but hand out on request."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from cachelb.common.arguments import require, seconds, text_headers, whole
from cachelb.common.extras import need
from cachelb.common.runs import Runs
from cachelb.events.stats import PollSourceStats
from cachelb.sources.http import metrics_address

if TYPE_CHECKING:
    from cachelb.events.sink import KvSink
    from cachelb.events.stats import PollStats
    from cachelb.sources.polled_run import PolledRun

Events: TypeAlias = "Sequence[Mapping[str, Any]] | bytes | str | None"
"""The next events of a worker: dicts, the JSON array of them, or None for no events."""

Fetch: TypeAlias = "Callable[[str], Events | Awaitable[Events]]"

_LARGEST_BLOCK = 1 << 16


@dataclass(eq=False, repr=False)
class PollSource:
    """Polls the KV cache events of every TensorRT-LLM worker and applies them to the router's index.

    TensorRT-LLM buffers its events until they are fetched, once: poll a worker from one place only. It needs
    `kv_cache_config` with `enable_block_reuse: true` and an `event_buffer_max_size` that holds the events of one
    interval: it forgets the oldest, and a missed event makes all known blocks of the worker doubtful.

    One thread polls all workers of the router, as they change. A slow or dead worker delays only itself: it is polled
    again after 2, 4, 8... intervals, up to 5 seconds.

    Events do not name adapters, nor salts in some versions. A block counts as one without them only if its hash
    (`v1_block_key`, `v2_sha256`) shows that; other blocks match no request. The largest attention window of a model
    counts as full attention; prompts resume where the others keep their last tokens.

    Args:
        fetch: Function from a worker's key, with the credentials in it, to its next events, as dicts or JSON; may be
            `async`, else it runs in a thread per worker. A call that takes longer than `timeout_s` is not repeated
            before it returns. Default: `POST /kv_cache_events` of `trtllm-serve`, which needs
            the extra `http`.
        interval_s: Seconds between an answer and the next request.
        timeout_s: Seconds a worker has for one answer; `trtllm-serve` takes up to 2 to see that there are no events.
        block_size: Tokens per block of the engines; by default that of a block which another one follows.
        verify: Whether hashes are checked. False counts all blocks as ones without adapter and salt, unless events
            name them: for engines that use neither.
        url: Without `fetch`: function from a worker's key to the URL of its events, or to None for a worker that is
            not polled. Default: scheme, host and port of the key with `/kv_cache_events`.
        headers: Without `fetch`: headers to send, such as `Authorization`.
        tls: Without `fetch`: context that verifies `https` servers. Default: the system's certificates.

    Raises:
        ModuleNotFoundError: aiohttp is not installed, and there is no `fetch`.
        TypeError: An argument is of another type.
        ValueError: An argument is out of range, or of no use beside `fetch`.

    Example:
        >>> from cachelb import Router
        >>> from cachelb.events import PollSource
        >>> def fetch(key):
        ...     return []  # such as llm.get_kv_cache_events(timeout=0.1)
        >>> with Router(policy="kv-aware") as router:
        ...     router.attach(PollSource(fetch))  # router.close() stops it
    """

    fetch: Fetch | None = None
    _: KW_ONLY
    interval_s: float = 0.05
    timeout_s: float = 10.0
    block_size: int | None = None
    verify: bool = True
    url: Callable[[str], str | None] | None = None
    headers: Mapping[str, str] | None = None
    tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        """Check the options."""
        fetch: object = self.fetch
        if fetch is None:
            self._check_http()
        elif not callable(fetch):
            found = type(fetch).__name__
            raise TypeError(f"fetch must be a function from a worker's key to its events, got {found}")
        elif unused := next((name for name in ("url", "headers", "tls") if getattr(self, name) is not None), None):
            raise ValueError(f"{unused} is of no use beside fetch, which does without it; give one of them")
        require("verify", self.verify, bool, "True or False")
        if self.block_size is not None:
            whole("block_size", self.block_size, 1, _LARGEST_BLOCK)
        self.interval_s = seconds("interval_s", self.interval_s)
        self.timeout_s = seconds("timeout_s", self.timeout_s)
        self.headers = text_headers(self.headers)
        self._runs: Runs[PolledRun[PollStats]] = Runs()

    def _check_http(self) -> None:
        need("PollSource without fetch", "aiohttp")
        if self.url is not None and not callable(self.url):
            raise TypeError(f"url must be a function from a worker's key to a URL, got {type(self.url).__name__}")
        if self.tls is not None:
            require("tls", self.tls, ssl.SSLContext, "an ssl.SSLContext")
        metrics_address("http://host/", text_headers(self.headers))  # bad headers are refused here, not per poll

    def start(self, router: KvSink, /) -> None:
        """Start polling.

        Args:
            router: The router to feed; its workers are followed.

        Raises:
            RuntimeError: The source is running already; one source feeds one router.
        """
        from cachelb.events.polling import poll_run

        self._runs.claim(self)
        self._runs.latest = poll_run(self, router)
        self._runs.latest.start()

    def stop(self) -> None:
        """Stop polling: close every connection and wait for the thread. Idempotent."""
        self._runs.stop()

    def stats(self) -> PollSourceStats:
        """Return the counters of the source.

        Returns:
            Counters since the start; all zero before it.
        """
        run = self._runs.latest
        return PollSourceStats(*((0, 0, {}) if run is None else run.totals()))
