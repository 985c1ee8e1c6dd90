"""Value types handed to callers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

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

    Example:
        >>> CandidateView("gpu0", "available", 4, 1, 64).overlap_blocks
        4
    """

    key: str
    state: str
    overlap_blocks: int
    inflight: int
    pending_prefill_tokens: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a decision picked its worker.

    Attributes:
        key: Key of the picked worker.
        reason: The decision's reason.
        matched_tokens: Prompt tokens the picked worker was believed to hold.
        candidates: Every offered worker, in the order of the list.

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
