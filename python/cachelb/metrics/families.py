"""The metric families of every exporter, made from a router's statistics.

| family | labels | counts |
|---|---|---|
| `funnel_requests` | | requests the funnel is over: completed, and the engine reported cached tokens |
| `funnel_tokens` | `step` | their tokens: `prompt`, `best_matched`, `selected_matched`, `engine_cached` |
| `decisions` | `policy`, `reason` | picks |
| `requests` | `outcome` | requests that ended |
| `abandoned` | | decisions dropped without being ended |
| `no_worker` | | selections that found no worker |
| `unread_usage` | | token counts of engines that were left out |
| `select_seconds` | | histogram of the time a selection takes; every eighth is timed |
| `open_requests` | | requests booked and not ended, including those of routers that share state |
| `inflight`, `pending_prefill_tokens`, `decode_blocks`, `worker_weight` | worker | load by the router's bookings |
| `worker_state` | worker, `state` | 1 for the state a worker is in |
| `worker_report_age_seconds`, `worker_running`, `worker_waiting` | worker | its engine's load report, if any |
| `worker_queued_tokens`, `worker_kv_usage` | worker | likewise |
| `index_blocks` | worker, `medium`, `state` | blocks of a worker in the index |
| `index_bytes`, `memory_bytes` | | native memory |
| `routes` | `trust` | learned by `boundary-learning`: here (`local`) or received (`remote`), which are evicted first |
| `learned_samples` | learner | requests that `learned` learned from |
| `learned_dropped_rewards` | learner, `reason` | unusable rewards |
| `learned_rounds` | learner, `result` | rounds of training: `swapped` in a model, `refused` it, `failed` |
| `learned_model_version` | learner | number of the model that decides, 0 without one |
| `learned_holdout_error`, `learned_mean_error` | learner | its mean absolute error, and that of predicting the mean |
| `learned_drift` | learner | its error on the latest requests over that on the hold-out |
| `learned_drifting_workers` | learner | workers whose predictions have drifted |
| `evictions` | `cause` | blocks that left the indexes |
| `kv_events` | worker, `kind`, `medium` | events of its engine |
| `kv_event_lag_seconds` | worker | from creation to arrival of its latest message |
| `kv_stream_state` | worker, `state` | 1 for the state of its event stream |
| `kv_gaps`, `kv_resyncs`, `kv_restarts` | | lost messages, gaps that no replay closed, and restarts of engines |
| `kv_repairs` | `reason` | times a worker's blocks were dropped as inconsistent: `capacity`, `cached-tokens` |
| `kv_checks` | worker, `result` | reported cached tokens against the events' prediction: `kept`, `found-less` |
| `kv_replays` | `result` | replays: `complete`, `short`, `failed` |
| `kv_dropped` | `reason` | updates that the indexes could not apply |
| `shadow_decisions`, `shadow_agreed` | `policy` | decisions a shadow policy took too, and those it agreed with |
| `shadow_matched_tokens`, `shadow_first_matched_tokens` | `policy` | tokens its picks held, and the router's |
| `state_peers` | | other routers received from; the rest is there only where state is shared |
| `state_started` | `start`, `detail` | 1 for the start of sharing: `warm` or `cold`, and why |
| `state_peer_silent_seconds`, `state_peer_lag_seconds` | `peer` | since its latest message; delay of its messages |
| `state_peer_bookings` | `peer` | its open requests, which count as load here |
| `state_peer_gaps`, `state_peer_snapshots` | `peer` | gaps in its messages; snapshots received from it |
| `state_messages` | `direction` | messages `sent` and `received` |
| `state_sent_bytes`, `state_refused`, `state_failures` | | bytes published; unreadable messages; transport errors |
| `state_gaps`, `state_snapshots` | | as for peers, with those that left |
| `state_blocks` | | remote blocks that were new to this router |
| `state_entries` | `result` | `applied`; or not: `orphan`, `stranger`, `stale`; or own and `dropped` |

Peer is the address of another router, or its number where they share a log. Worker stands for two labels: `worker`, its
key, and `dp_rank`, empty for workers without data-parallel ranks. Learner stands for `model`, empty for the first pool,
and `part`. The reason why `learned` left a decision to its fallback is the `reason` of `decisions`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from cachelb.metrics.family import counter, gauge, rows_of, single
from cachelb.metrics.shared_state import of_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cachelb.metrics.family import Family, Row
    from cachelb.types import Histogram, KvEventStats, LearnedStats, RouterStats, ShadowStats, WorkerStats

_WORKER = ("worker", "dp_rank")
_LEARNER = ("model", "part")


class Measured(Protocol):
    """The source of the metrics; `cachelb.Router` is one."""

    def stats(self) -> RouterStats:
        """Return every counter."""
        ...


@dataclass(frozen=True, slots=True)
class Durations:
    """One metric that is a histogram of seconds.

    Attributes:
        name: Name without prefix and suffix.
        help: What it is.
        histogram: The buckets.
    """

    name: str
    help: str
    histogram: Histogram


def durations(stats: RouterStats) -> Durations:
    """Return the histogram of the selection times.

    Args:
        stats: A router's statistics.

    Returns:
        The histogram.
    """
    text = "Time a selection takes that picks a worker; every eighth is timed."
    return Durations("select_seconds", text, stats.select_seconds)


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
    yield from _of_requests(stats)
    yield from _of_workers(stats.workers)
    yield from _of_indexes(stats)
    yield from _of_events(stats)
    yield from _of_learners(stats.learned)
    yield from _of_shadows(_named_apart(stats.shadows))
    yield from of_state(stats.state)


def _of_requests(stats: RouterStats) -> Iterator[Family]:
    funnel = stats.funnel
    text = "Completed requests whose engine reported cached tokens."
    yield counter("funnel_requests", text, "{request}", (), single(funnel.requests))
    steps = {
        "prompt": funnel.prompt_tokens,
        "best_matched": funnel.best_matched_tokens,
        "selected_matched": funnel.selected_matched_tokens,
        "engine_cached": funnel.engine_cached_tokens,
    }
    text = "Prompt tokens of those requests: all, held by the best candidate, by the picked one, cached by its engine."
    yield counter("funnel_tokens", text, "{token}", ("step",), rows_of(steps))
    picks = list(stats.decisions.items())
    yield counter("decisions", "Picks by policy and reason.", "{decision}", ("policy", "reason"), picks)
    yield counter("requests", "Requests by how they ended.", "{request}", ("outcome",), rows_of(stats.endings))
    dropped = single(stats.endings.get("abandoned", 0))
    yield counter("abandoned", "Decisions dropped without being ended.", "{decision}", (), dropped)
    yield counter("unread_usage", "Counts of engines left out.", "{count}", (), single(stats.unread_usage))
    yield counter("no_worker", "Selections that found nobody.", "{selection}", (), single(stats.no_worker))
    text = "Requests booked and not ended, by gateways that share too."
    yield gauge("open_requests", text, "{request}", (), single(stats.open_requests))


def _of_workers(workers: Sequence[WorkerStats]) -> Iterator[Family]:
    known = [(_who(worker), worker) for worker in workers]
    for name, text, unit, attribute in (
        ("inflight", "Requests booked and not ended.", "{request}", "inflight"),
        ("pending_prefill_tokens", "Uncached tokens without a first token.", "{token}", "pending_prefill_tokens"),
        ("decode_blocks", "Blocks of requests past their first token.", "{block}", "decode_blocks"),
        ("worker_weight", "Relative capacity.", "1", "weight"),
        ("worker_report_age_seconds", "Age of the engine's latest report.", "s", "report_age_s"),
        ("worker_running", "Requests the engine computes, by its report.", "{request}", "running"),
        ("worker_waiting", "Requests that wait in the engine, by its report.", "{request}", "waiting"),
        ("worker_queued_tokens", "Tokens that wait in the engine, by its report.", "{token}", "queued_tokens"),
        ("worker_kv_usage", "Part of the KV cache in use, by the engine's report.", "1", "kv_usage"),
    ):
        values = [(labels, getattr(worker, attribute)) for labels, worker in known]
        yield gauge(name, text, unit, _WORKER, [row for row in values if row[1] is not None])
    states: list[Row] = [((*labels, worker.state), 1) for labels, worker in known]
    yield gauge("worker_state", "1 for the state a worker is in.", "1", (*_WORKER, "state"), states)
    blocks = [row for labels, worker in known for row in _blocks(labels, worker)]
    text = "Blocks a worker is believed to hold. Without events of its engine, all of them are speculative."
    yield gauge("index_blocks", text, "{block}", (*_WORKER, "medium", "state"), blocks)


def _who(worker: WorkerStats) -> tuple[str, str]:
    return worker.key, "" if worker.dp_rank is None else str(worker.dp_rank)


def _blocks(labels: tuple[str, str], worker: WorkerStats) -> Iterator[Row]:
    fed = worker.kv_events is not None and worker.kv_events.fed
    for medium, blocks in worker.index_blocks.items():
        if medium == "speculative":
            yield (*labels, "gpu", "speculative"), blocks
        else:
            yield (*labels, medium, "confirmed" if fed else "speculative"), blocks


def _of_indexes(stats: RouterStats) -> Iterator[Family]:
    yield gauge("index_bytes", "Bytes of the block indexes.", "By", (), single(stats.index_bytes))
    yield gauge("memory_bytes", "Bytes of native memory.", "By", (), single(stats.memory_bytes))
    routes = [(("local",), stats.routes - stats.remote_routes), (("remote",), stats.remote_routes)]
    yield gauge("routes", "Prefixes that boundary-learning remembers.", "{route}", ("trust",), routes)
    evictions, dropped = rows_of(stats.evictions), rows_of(stats.dropped)
    yield counter("evictions", "Blocks that left the indexes, by cause.", "{block}", ("cause",), evictions)
    yield counter("kv_dropped", "What the indexes were told and could not take.", "{change}", ("reason",), dropped)


def _of_learners(learners: Sequence[LearnedStats]) -> Iterator[Family]:
    # Two shadows of a model are one series: the first.
    named = {(stats.model or "", stats.part): stats for stats in reversed(learners)}
    counts: list[tuple[str, str, str, str]] = [
        ("learned_dropped_rewards", "Rewards that taught nothing.", "reason", "dropped"),
        ("learned_rounds", "Rounds of training by how they ended.", "result", "rounds"),
    ]
    samples = [(who, stats.samples) for who, stats in named.items()]
    yield counter("learned_samples", "Requests learned from.", "{request}", _LEARNER, samples)
    for name, text, label, attribute in counts:
        rows: list[Row] = [
            ((*who, what), n) for who, stats in named.items() for what, n in getattr(stats, attribute).items()
        ]
        yield counter(name, text, "{event}", (*_LEARNER, label), rows)
    for name, text, unit, attribute in (
        ("learned_model_version", "Number of the model that decides, 0 without one.", "1", "version"),
        ("learned_holdout_error", "Mean absolute error of the model on samples held out.", "1", "mae"),
        ("learned_mean_error", "That of predicting the mean.", "1", "mean_mae"),
        ("learned_drift", "Its error on the latest requests, in those of the hold-out.", "1", "drift"),
        ("learned_drifting_workers", "Workers on which the model is off.", "{worker}", "drifting"),
    ):
        yield gauge(name, text, unit, _LEARNER, [(who, getattr(stats, attribute)) for who, stats in named.items()])


def _of_events(stats: RouterStats) -> Iterator[Family]:
    streams = [(_who(worker), worker.kv_events) for worker in stats.workers if worker.kv_events is not None]
    events: list[Row] = [((*who, *what), count) for who, stream in streams for what, count in stream.events.items()]
    yield counter("kv_events", "KV events of a worker's engine.", "{event}", (*_WORKER, "kind", "medium"), events)
    lags = [(who, stream.lag_s) for who, stream in streams if stream.lag_s is not None]
    text = "Time from the making of the latest message to its arrival."
    yield gauge("kv_event_lag_seconds", text, "s", _WORKER, lags)
    states: list[Row] = [((*who, stream.state), 1) for who, stream in streams]
    text = "1 for how far the events of a worker can be believed."
    yield gauge("kv_stream_state", text, "1", (*_WORKER, "state"), states)
    yield counter("kv_gaps", "Gaps in the numbers of messages.", "{gap}", (), single(stats.kv_gaps))
    yield counter("kv_replays", "Replays by how they ended.", "{replay}", ("result",), rows_of(stats.kv_replays))
    yield counter("kv_resyncs", "Gaps that no replay closed.", "{resync}", (), single(stats.kv_resyncs))
    yield counter("kv_restarts", "Restarts of engines.", "{restart}", (), single(stats.kv_restarts))
    text = "Times that what events said could not be true and was dropped."
    yield counter("kv_repairs", text, "{repair}", ("reason",), rows_of(stats.kv_repairs))
    checks: list[Row] = [((*who, *row[0]), row[1]) for who, stream in streams for row in rows_of(_checks(stream))]
    text = "Requests whose reported cached tokens were compared with what events promised."
    yield counter("kv_checks", text, "{request}", (*_WORKER, "result"), checks)


def _checks(stream: KvEventStats) -> dict[str, int]:
    return {"kept": stream.checked - stream.found_less, "found-less": stream.found_less}


def _of_shadows(shadows: Mapping[str, ShadowStats]) -> Iterator[Family]:
    for name, text, unit, attribute in (
        ("shadow_decisions", "Decisions a shadow policy took too.", "{decision}", "decisions"),
        ("shadow_agreed", "Those in which it picked the same worker.", "{decision}", "agreed"),
        ("shadow_matched_tokens", "Tokens its picks held.", "{token}", "matched_tokens"),
        ("shadow_first_matched_tokens", "Tokens the router's picks held.", "{token}", "first_matched_tokens"),
    ):
        rows: list[Row] = [((policy,), getattr(shadow, attribute)) for policy, shadow in shadows.items()]
        yield counter(name, text, unit, ("policy",), rows)


def _named_apart(shadows: Sequence[ShadowStats]) -> dict[str, ShadowStats]:
    """Number shadows of the same policy, which differ in their options: two series must not have the same labels."""
    named: dict[str, ShadowStats] = {}
    for shadow in shadows:
        same = sum(other.policy == shadow.policy for other in named.values())
        named[f"{shadow.policy}#{same + 1}" if same else shadow.policy] = shadow
    return named
