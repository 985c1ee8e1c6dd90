"""A router's native counters as value types, read on request."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from cachelb.bodies import BodyStats
from cachelb.stats.admission import read_bands
from cachelb.stats.events import CacheGroupStats, KvEventStats
from cachelb.types import (
    Funnel,
    Histogram,
    RouterStats,
    ShadowStats,
    WorkerStats,
)

if TYPE_CHECKING:
    from cachelb.router.router import Router
    from cachelb.types import StateStats


def _stream(row: dict[str, Any]) -> KvEventStats:
    """Read the counters of one event stream."""
    groups = tuple(CacheGroupStats(*group) for group in row.pop("groups"))
    return KvEventStats(**row, groups=groups)


def stats(router: Router[Any]) -> RouterStats:
    """Read every counter of a router."""
    counters = router._fleet.counters()
    streams = {(key, rank): _stream(row) for key, rank, row in router._fleet.event_rows()}
    events = router._fleet.event_totals()
    dropped = Counter(counters.pop("dropped"))
    dropped.update(events.pop("dropped"))
    return RouterStats(
        workers=[
            WorkerStats(**row, kv_events=streams.get((row["key"], row["dp_rank"])))
            for row in router._fleet.worker_rows()
        ],
        decisions=_decisions(router, counters.pop("decisions")),
        funnel=Funnel(**counters.pop("funnel")),
        bodies=BodyStats(**router._body_counts()),
        select_seconds=Histogram(*counters.pop("select_seconds")),
        dropped=dict(dropped),
        shadows=_shadows(router, counters.pop("shadows")),
        admission=read_bands(counters.pop("bands")),
        policy=router.policy.name,
        models=router._fleet.models(),
        learned=router.policy.learned_stats(),
        state=_state(router),
        discovery=router.discovered.stats(),
        polls=router._sources.polls(router.keys()),
        **{f"kv_{name}": value for name, value in events.items()},
        **counters,
    )


def _state(router: Router[Any]) -> StateStats | None:
    """Read the state of sharing; in a forked child, the parent's does not count."""
    exchange = router._exchange
    return None if exchange is None or exchange.pid != os.getpid() else exchange.stats()


def _decisions(router: Router[Any], counts: dict[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    """Merge counts by half of a pair into counts by policy."""
    decisions: Counter[tuple[str, str]] = Counter()
    for (part, reason), n in counts.items():
        decisions[router.policy.name_of(part), reason] += n
    return dict(decisions)


def _shadows(router: Router[Any], tallies: list[dict[str, int]]) -> tuple[ShadowStats, ...]:
    """Name the tallies; there are none before the first decision."""
    tallies += [dict.fromkeys((each.name for each in fields(ShadowStats)[1:]), 0)] * (
        len(router.policy.shadows) - len(tallies)
    )
    return tuple(ShadowStats(policy, **tally) for policy, tally in zip(router.policy.shadows, tallies, strict=True))
