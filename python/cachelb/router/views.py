"""A router's native counters as value types, read when somebody asks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from cachelb.types import DecisionRecord, RouterStats, ShadowPick, WorkerStats

if TYPE_CHECKING:
    from cachelb.router.router import Router


def stats(router: Router[Any]) -> RouterStats:
    """Read every counter of a router.

    Args:
        router: The router.

    Returns:
        Its counters.
    """
    counters = router._counters()
    policy = router.policy
    return RouterStats(
        workers=[WorkerStats(**row) for row in router._worker_rows()],
        decisions={(policy, reason): n for reason, n in counters["decisions"].items()},
        endings=counters["endings"],
        open_requests=counters["open_requests"],
        index_blocks=counters["index_blocks"],
        index_bytes=counters["index_bytes"],
        memory_bytes=counters["memory_bytes"],
        no_worker=counters["no_worker"],
        policy=policy,
        models=router._models(),
    )


def records_since(router: Router[Any], cursor: int, limit: int) -> tuple[list[DecisionRecord], int, int]:
    """Read the records of finished requests.

    Args:
        router: The router.
        cursor: Where to begin.
        limit: How many at most.

    Returns:
        The records, the next cursor, and how many were lost.
    """
    rows, cursor, lost = router._records_since(cursor, limit)
    return [_record(router, row) for row in rows], cursor, lost


def recent(router: Router[Any], n: int) -> list[DecisionRecord]:
    """Read the newest records.

    Args:
        router: The router.
        n: How many at most.

    Returns:
        The records, oldest first.
    """
    if n < 0:
        raise ValueError(f"n must be 0 or more, got {n}")
    return records_since(router, 0, 1 << 30)[0][-n:] if n else []


def _record(router: Router[Any], row: dict[str, Any]) -> DecisionRecord:
    time_s = time.time() - row.pop("age_s")
    shadows = tuple(
        ShadowPick(policy=policy, key=key, reason=reason, matched_tokens=matched)
        for policy, (key, reason, matched) in zip(router.shadows, row.pop("shadows"), strict=False)
    )
    return DecisionRecord(time_s=time_s, policy=router.policy, shadows=shadows, **row)
