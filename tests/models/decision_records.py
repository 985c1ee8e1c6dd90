"""Decision records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cachelb.types import DecisionRecord

PLAIN = DecisionRecord(
    id="d",
    part="whole",
    time_s=0.0,
    model=None,
    policy="cache-aware",
    key="gpu0",
    dp_rank=None,
    reason="prefix",
    prompt_tokens=1000,
    best_matched_tokens=1000,
    matched_tokens=1000,
    cached_tokens=1000,
    engine_prompt_tokens=None,
    output_tokens=1,
    candidates=2,
    attempt=0,
    outcome="completed",
    ttft_s=None,
    duration_s=1.0,
    shadows=(),
)


def decision_record(**changes: Any) -> DecisionRecord:
    """A record of a request whose whole prompt was cached, but for the changes."""
    return replace(PLAIN, **changes)
