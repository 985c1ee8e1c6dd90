"""Value types handed to callers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    # numpy declares its buffers to type checkers from Python 3.12 on, so its arrays are named here.
    Tokens: TypeAlias = Buffer | NDArray[np.integer[Any]] | Sequence[int]

Reason: TypeAlias = Literal[
    "prefix",
    "spill",
    "cold",
    "least-loaded",
    "no-key",
    "short-prompt",
    "session",
    "session-moved",
    "hash",
    "hash-bounded",
    "sticky",
    "sticky-broken",
    "imbalance",
    "diverted",
    "explore",
    "learned",
    "learned-tie",
    "k-filter",
    "cold-start",
    "ood",
    "model-error",
    "model-timeout",
    "model-stale",
    "model-drift",
    "normaliser-mismatch",
    "stale-events",
    "stale-load",
    "pinned",
    "only-one",
    "slo-unattainable",
    "full",
    "local-decode",
    "random",
    "round-robin",
    "length-bucket",
    "custom",
    "policy-error",
]
"""Why a worker was picked; a closed set, every fallback has its own name."""

Outcome: TypeAlias = Literal["client", "backpressure", "failed"]
"""What kind of failure ended a request."""


@dataclass(frozen=True, slots=True)
class CandidateView:
    """What a selection saw of one offered worker, before it booked anything.

    Attributes:
        key: Key of the worker.
        state: "available", or why the worker took no part; the numbers are 0 then.
        overlap_blocks: Leading blocks of the request it held.
        inflight: Requests booked on it and not finished.
        pending_prefill_tokens: Uncached prompt tokens on it without a first token.
        matched_tokens: Prompt tokens it need not compute, by the credits of where they lie.
        decode_blocks: Blocks of its requests past their first token.
        weight: Its relative capacity.
        score: What the policy ranked it by, in the policy's own unit; None if it has no number for it.
        picked: Whether it was picked.

    Example:
        >>> CandidateView("gpu0", "available", 4, 1, 64).overlap_blocks
        4
    """

    key: str
    state: str
    overlap_blocks: int
    inflight: int
    pending_prefill_tokens: int
    matched_tokens: float = 0.0
    decode_blocks: int = 0
    weight: float = 1.0
    score: float | None = None
    picked: bool = False


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a decision picked its worker.

    Attributes:
        key: Key of the picked worker.
        reason: The decision's reason.
        matched_tokens: Prompt tokens the picked worker was believed to hold.
        candidates: The offered workers, in the order of the list. Of more than 64, the picked one and those that held
            something; empty once the decision is too long ago.

    Example:
        >>> from cachelb.policies import LeastLoaded
        >>> with LeastLoaded(seed=1).select_worker(["gpu0"]) as decision:
        ...     decision.explain().candidates[0].inflight
        0
    """

    key: str
    reason: Reason
    matched_tokens: int
    candidates: tuple[CandidateView, ...]


class RequestArguments(TypedDict, total=False):
    """The keyword arguments of `Router.select_worker` that describe the request.

    Example:
        >>> RequestArguments(text="hello", session="chat-1")["session"]
        'chat-1'
    """

    tokens: Tokens | None
    text: str | None
    messages: Sequence[Mapping[str, Any]] | None
    blocks: Tokens | None
    prompt_tokens: int | None
    model: str | None
    lora: str | None
    cache_salt: str | None
    mm: Iterable[tuple[int, int, int]] | None
    session: str | None
    tenant: str | None
    priority: int
    max_output_tokens: int | None
    expected_output_tokens: int | None
    among: Iterable[object] | None
    exclude: Iterable[object] | None


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """What a router knows of a worker, or of one data-parallel rank of it. A report's value is None if unknown.

    Attributes:
        key: Key of the worker.
        dp_rank: Data-parallel rank, None if it has one.
        role: "both", "prefill" or "decode".
        state: "ready", or why it takes no requests.
        inflight: Requests booked and not finished.
        pending_prefill_tokens: Uncached prompt tokens of those without a first token.
        decode_blocks: Blocks of those past their first token.
        index_blocks: Blocks it is believed to hold.
        weight: Relative capacity.
        report_age_s: Age of its latest report in seconds, None if it never reported.
        running: Requests it computes, by its report.
        waiting: Requests that wait, by its report.
        queued_tokens: Prompt tokens that wait, by its report.
        kv_usage: Part of its KV cache in use, by its report.
        prefill_tps: Prompt tokens per second, by its report.
        gen_tps: Output tokens per second, by its report.
    """

    key: str
    dp_rank: int | None
    role: str
    state: str
    inflight: int
    pending_prefill_tokens: int
    decode_blocks: int
    index_blocks: int
    weight: float
    report_age_s: float | None
    running: float | None
    waiting: float | None
    queued_tokens: float | None
    kv_usage: float | None
    prefill_tps: float | None
    gen_tps: float | None


@dataclass(frozen=True, slots=True)
class RouterStats:
    """Every counter of a router.

    Attributes:
        workers: Each worker, or each rank of it.
        decisions: Decisions by policy and reason.
        endings: Requests by how they ended.
        open_requests: Requests booked and not finished.
        index_blocks: Distinct blocks known.
        index_bytes: Bytes of the block indexes.
        memory_bytes: Bytes of native memory.
        no_worker: Selections that found nobody.
        policy: Name of the policy.
        models: Models with an index of their own.
    """

    workers: list[WorkerStats]
    decisions: dict[tuple[str, str], int]
    endings: dict[str, int]
    open_requests: int
    index_blocks: int
    index_bytes: int
    memory_bytes: int
    no_worker: int
    policy: str
    models: list[str]


@dataclass(frozen=True, slots=True)
class ShadowPick:
    """What a shadow policy would have done.

    Attributes:
        policy: Name of the shadow policy.
        key: Key of the worker it would have picked.
        reason: Why.
        matched_tokens: Prompt tokens that worker held.
    """

    policy: str
    key: str
    reason: Reason
    matched_tokens: int


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """One finished request. Nothing of its prompt, salt or session.

    Attributes:
        id: The decision's id.
        time_s: When it was decided, in seconds since the epoch.
        model: Model with an index of its own, None for the first one.
        policy: Name of the policy.
        key: Key of the worker.
        dp_rank: Data-parallel rank, None if the worker has one.
        reason: Why that worker.
        prompt_tokens: Length of the prompt.
        best_matched_tokens: Prompt tokens the best candidate held.
        matched_tokens: Prompt tokens the picked worker held.
        cached_tokens: Prompt tokens the engine took from its cache, None if it did not say.
        output_tokens: Output tokens the engine counted, None if it did not say.
        candidates: Workers that took part.
        attempt: How often the request was tried before.
        outcome: How it ended.
        ttft_s: Seconds to the first token, None without one.
        duration_s: Seconds to the end.
        shadows: What shadow policies would have done.
    """

    id: str
    time_s: float
    model: str | None
    policy: str
    key: str
    dp_rank: int | None
    reason: Reason
    prompt_tokens: int
    best_matched_tokens: int
    matched_tokens: int
    cached_tokens: int | None
    output_tokens: int | None
    candidates: int
    attempt: int
    outcome: str | None
    ttft_s: float | None
    duration_s: float | None
    shadows: tuple[ShadowPick, ...]
