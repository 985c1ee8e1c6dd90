"""The metric families of every exporter, made from a router's statistics.

Most are fields of `cachelb.types`, which declare their metrics themselves. The label `worker` is a worker's key, and
`dp_rank` is empty for workers without data-parallel ranks; `model` is empty for the first pool; `peer` is the address
of another router, or its number where they share a log. A value that is a text is a label of a series that is 1.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

from cachelb.bodies import BodyStats
from cachelb.common.measure import Measure, measures
from cachelb.metrics.family import Family
from cachelb.stats.admission import BandStats
from cachelb.stats.events import KvEventStats
from cachelb.stats.polls import WorkerPolls
from cachelb.types import (
    DiscoveryStats,
    Funnel,
    LearnedStats,
    PeerStats,
    RouterStats,
    ShadowStats,
    StateStats,
    WorkerStats,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from cachelb.metrics.family import Row

    Labels: TypeAlias = tuple[str, ...]

SELECTION: Final = ("select_seconds", "Seconds that a selection takes; one in eight is timed.")
"""Name and help of the histogram `RouterStats.select_seconds`."""

_WORKER = ("worker", "dp_rank")
_fields = cache(measures)
_Owner = TypeVar("_Owner")


class Measured(Protocol):
    """The source of the metrics; `cachelb.Router` is one."""

    def stats(self) -> RouterStats:
        """Return every counter."""
        ...


def families(stats: RouterStats) -> Iterator[Family]:
    """Yield every metric but the histogram. The families are always the same, with the current series.

    Args:
        stats: A router's statistics.

    Yields:
        The families.

    Example:
        >>> import cachelb
        >>> named = {family.name: family for family in families(cachelb.Router(["gpu0"]).stats())}
        >>> named["inflight"].rows
        [(('gpu0', ''), 0)]
    """
    workers: dict[Labels, WorkerStats] = {_who(worker): worker for worker in stats.workers}
    streams: dict[Labels, KvEventStats] = {
        who: worker.kv_events for who, worker in workers.items() if worker.kv_events is not None
    }
    # Two shadows of a model are one series: the first.
    learners: dict[Labels, LearnedStats] = {
        (learner.model or "", learner.part): learner for learner in reversed(stats.learned)
    }
    state = stats.state
    peers: dict[Labels, PeerStats] = {}
    if state is not None:
        peers = {(peer.address or f"{peer.origin:016x}",): peer for peer in state.peers}
    yield from _of(Funnel, (), {(): stats.funnel})
    yield from _of(RouterStats, (), {(): stats})
    yield from _of(BodyStats, (), {(): stats.bodies})
    yield from _of(WorkerStats, _WORKER, workers)
    yield from _of(KvEventStats, _WORKER, streams)
    yield from _of(WorkerPolls, ("worker",), {(key,): polls for key, polls in stats.polls.items()})
    yield from _of(LearnedStats, ("model", "part"), learners)
    yield from _of(ShadowStats, ("policy",), _named_apart(stats.shadows, "policy"))
    yield from _of(BandStats, ("priority",), {(str(band.priority),): band for band in stats.admission})
    yield from _of(StateStats, (), {} if state is None else {(): state})
    yield from _of(PeerStats, ("peer",), peers)
    yield from _of(DiscoveryStats, ("source",), _named_apart(stats.discovery, "source"))
    yield from _derived(stats, workers, streams)


def _of(owner: type, labels: Labels, owners: Mapping[Labels, object]) -> Iterable[Family]:
    """Make the families that a class of statistics declares."""
    made: dict[str, Family] = {}
    for measure in _fields(owner):
        rows = [row for who, stats in owners.items() for row in _rows(measure, who, getattr(stats, measure.field))]
        text = measure.help if measure.row is None else f"{measure.row}: {measure.help}"
        if (first := made.get(measure.name)) is not None:
            rows, text = [*first.rows, *rows], f"{first.help} {text}"
        names = (*labels, *measure.labels)
        made[measure.name] = Family(measure.name, measure.kind, text, measure.unit, names, rows)
    return made.values()


def _rows(measure: Measure, who: Labels, value: Any) -> list[Row]:  # noqa: ANN401 - fields of many types
    match value:
        case None:
            return []
        case dict():
            return [((*who, *((key,) if isinstance(key, str) else key)), number) for key, number in value.items()]
        case str():
            return [((*who, value), 1)]
    return [(who if measure.row is None else (*who, measure.row), value)]


def _derived(
    stats: RouterStats, workers: Mapping[Labels, WorkerStats], streams: Mapping[Labels, KvEventStats]
) -> Iterator[Family]:
    """Make the families that are no field of the statistics."""
    abandoned = stats.endings.get("abandoned", 0)
    text = "Decisions dropped without a report of how their request ended."
    yield Family("abandoned", "counter", text, "{decision}", (), [((), abandoned)])
    blocks = [(labels, n) for who, worker in workers.items() for labels, n in _blocks(who, worker)]
    text = "Blocks of a worker in the index. Without KV events, all of them are speculative."
    yield Family("index_blocks", "gauge", text, "{block}", (*_WORKER, "medium", "state"), blocks)
    routes: list[Row] = [(("local",), stats.routes - stats.remote_routes), (("remote",), stats.remote_routes)]
    text = "Prefixes that the policy boundary-learning remembers, by origin: local or another router."
    yield Family("routes", "gauge", text, "{route}", ("trust",), routes)
    checks: list[Row] = []
    for who, stream in streams.items():
        found = {"kept": stream.checked - stream.found_less, "found-less": stream.found_less}
        checks += [((*who, result), n) for result, n in found.items()]
    text = "Requests whose reported cached tokens were compared with the prediction of the KV events."
    yield Family("kv_checks", "counter", text, "{request}", (*_WORKER, "result"), checks)
    state = stats.state
    count: list[Row] = [] if state is None else [((), len(state.peers))]
    yield Family("state_peers", "gauge", "Other routers whose messages this router receives.", "{router}", (), count)
    start: list[Row] = [] if state is None else [(state.start.partition(": ")[::2], 1)]
    text = "Always 1; the labels give how the router started: warm, from a peer's snapshot, or cold, and why."
    yield Family("state_started", "gauge", text, "1", ("start", "detail"), start)


def _who(worker: WorkerStats) -> tuple[str, str]:
    return worker.key, "" if worker.dp_rank is None else str(worker.dp_rank)


def _blocks(who: Labels, worker: WorkerStats) -> Iterator[Row]:
    fed = worker.kv_events is not None and worker.kv_events.fed
    for medium, blocks in worker.index_blocks.items():
        if medium == "speculative":
            yield (*who, "gpu", "speculative"), blocks
        else:
            yield (*who, medium, "confirmed" if fed else "speculative"), blocks


def _named_apart(owners: Sequence[_Owner], field: str) -> dict[Labels, _Owner]:
    """Number owners with the same name, such as shadows of one policy: no two series have the same labels."""
    named: dict[Labels, _Owner] = {}
    same: Counter[str] = Counter()
    for owner in owners:
        name: str = getattr(owner, field)
        same[name] += 1
        named[(f"{name}#{same[name]}" if same[name] > 1 else name,)] = owner
    return named
