"""Decision records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cachelb.types import DecisionRecord

COUNTS: dict[str, Any] = dict.fromkeys(
    ("prompt_tokens", "best_matched_tokens", "matched_tokens", "cached_tokens"), 1000
)
UNKNOWN: dict[str, Any] = dict.fromkeys(("model", "dp_rank", "engine_prompt_tokens", "ttft_s"))
WHAT: dict[str, Any] = {"id": "d", "part": "whole", "policy": "cache-aware", "key": "gpu0", "reason": "prefix"}
REST: dict[str, Any] = {"time_s": 0.0, "output_tokens": 1, "candidates": 2, "attempt": 0, "duration_s": 1.0}
PLAIN = DecisionRecord(**WHAT, **REST, **COUNTS, **UNKNOWN, outcome="completed", shadows=())


def decision_record(**changes: Any) -> DecisionRecord:
    """A record of a request whose whole prompt was cached, but for the changes."""
    return replace(PLAIN, **changes)
