"""A router's native counters as value types, read on request."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from cachelb.admission_stats import read_bands
from cachelb.arguments import whole
from cachelb.bodies import BodyStats
from cachelb.event_stats import CacheGroupStats, KvEventStats
from cachelb.types import (
    DecisionRecord,
    Funnel,
    Histogram,
    LearnedStats,
    RouterStats,
    ShadowPick,
    ShadowStats,
    WorkerStats,
)

if TYPE_CHECKING:
    from cachelb.router.observation import Observation
    from cachelb.types import StateStats


def _stream(row: dict[str, Any]) -> KvEventStats:
    """Read the counters of one event stream."""
    groups = tuple(CacheGroupStats(*group) for group in row.pop("groups"))
    return KvEventStats(**row, groups=groups)


def stats(router: Observation[Any]) -> RouterStats:
    """Read every counter of a router."""
    counters = router._fleet.counters()
    streams = {(key, rank): _stream(row) for key, rank, row in router._fleet.event_rows()}
    events = router._fleet.event_totals()
    dropped = Counter(counters["dropped"])
    dropped.update(events["dropped"])
    return RouterStats(
        workers=[
            WorkerStats(**row, kv_events=streams.get((row["key"], row["dp_rank"])))
            for row in router._fleet.worker_rows()
        ],
        decisions=_decisions(router, counters["decisions"]),
        endings=counters["endings"],
        open_requests=counters["open_requests"],
        funnel=Funnel(**counters["funnel"]),
        bodies=BodyStats(**router._body_counts()),
        select_seconds=Histogram(*counters["select_seconds"]),
        evictions=counters["evictions"],
        dropped=dict(dropped),
        shadows=_shadows(router, counters["shadows"]),
        index_blocks=counters["index_blocks"],
        index_bytes=counters["index_bytes"],
        memory_bytes=counters["memory_bytes"],
        no_worker=counters["no_worker"],
        overloaded=counters["overloaded"],
        admission=read_bands(counters["bands"]),
        unread_usage=counters["unread_usage"],
        policy=router.policy,
        models=router._fleet.models(),
        kv_gaps=events["gaps"],
        kv_replays=events["replays"],
        kv_resyncs=events["resyncs"],
        kv_restarts=events["restarts"],
        kv_repairs=events["repairs"],
        routes=counters["routes"],
        remote_routes=counters["remote_routes"],
        learned=learned(router),
        state=_state(router),
        discovery=router.discovered.stats(),
        polls=router._sources.polls(router.keys()),
    )


def _state(router: Observation[Any]) -> StateStats | None:
    """Read the state of sharing; in a forked child, the parent's does not count."""
    exchange = router._exchange
    return None if exchange is None or exchange.pid != os.getpid() else exchange.stats()


def learned(router: Observation[Any]) -> tuple[LearnedStats, ...]:
    """Read the learning state of a router's policies, one entry for each that learns."""
    return tuple(LearnedStats(**row) for row in router._fleet.learned())


def records_since(router: Observation[Any], cursor: int, limit: int) -> tuple[list[DecisionRecord], int, int]:
    """Read the records of finished requests from a cursor on: the records, the next cursor, the number lost."""
    rows, cursor, lost = router._fleet.records_since(cursor, limit)
    now_s = time.time()  # one for all, so that records are as far apart as their decisions
    return [_record(router, row, now_s) for row in rows], cursor, lost


def recent(router: Observation[Any], n: int) -> list[DecisionRecord]:
    """Read the newest records, oldest first."""
    n = whole("n", n, 0)
    return records_since(router, 0, 1 << 30)[0][-n:] if n else []


def _record(router: Observation[Any], row: dict[str, Any], now_s: float) -> DecisionRecord:
    time_s = now_s - row.pop("age_s")
    shadows = tuple(ShadowPick(policy, *pick) for policy, pick in zip(router.shadows, row.pop("shadows"), strict=False))
    return DecisionRecord(time_s=time_s, policy=router._policy_for(row["part"]), shadows=shadows, **row)


def _decisions(router: Observation[Any], counts: dict[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    """Merge counts by half of a pair into counts by policy."""
    decisions: dict[tuple[str, str], int] = {}
    for (part, reason), n in counts.items():
        name = (router._policy_for(part), reason)
        decisions[name] = decisions.get(name, 0) + n
    return decisions


def _shadows(router: Observation[Any], tallies: list[dict[str, int]]) -> tuple[ShadowStats, ...]:
    """Name the tallies; there are none before the first decision."""
    tallies += [dict.fromkeys((each.name for each in fields(ShadowStats)[1:]), 0)] * (
        len(router.shadows) - len(tallies)
    )
    return tuple(ShadowStats(policy, **tally) for policy, tally in zip(router.shadows, tallies, strict=True))
