"""How polling the metrics pages of workers goes."""

from __future__ import annotations

from dataclasses import dataclass, field

from cachelb.common.measure import counter


@dataclass(frozen=True, slots=True)
class WorkerPolls:
    """How polling one worker goes.

    Attributes:
        polls: Requests for the metrics page of the worker.
        failures: Requests for the metrics page that failed or timed out.
        unknown: Metrics pages that held no known metric.
        dropped: Samples of metrics pages ignored because their value is impossible.
        refused: Values of metrics pages that the router refused, such as a block size that does not fit.
        readable: Whether the last page could be read; None before the first answer.
        last_error: Why a page could last not be read ("TimeoutError", "HTTP 503", "empty page", "no metrics page",
            "no known metrics"), kept after recovery.
        engine: "vllm", "sglang" or "tensorrt-llm", once known.

    Example:
        >>> from cachelb.sources import WorkerPolls
        >>> print(WorkerPolls().readable)
        None
    """

    polls: int = field(default=0, metadata=counter("polls", "{page}"))
    failures: int = field(default=0, metadata=counter("poll_failures", "{page}"))
    unknown: int = field(default=0, metadata=counter("poll_unknown", "{page}"))
    dropped: int = field(default=0, metadata=counter("poll_dropped", "{sample}"))
    refused: int = field(default=0, metadata=counter("poll_refused", "{report}"))
    readable: bool | None = None
    last_error: str | None = None
    engine: str | None = None
