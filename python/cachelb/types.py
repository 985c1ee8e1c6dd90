"""Value types of the public API."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict

from cachelb.common.measure import counter, gauge

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from cachelb.bodies import BodyStats, Headers
    from cachelb.stats.admission import BandStats
    from cachelb.stats.events import KvEventStats
    from cachelb.stats.polls import WorkerPolls

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
    "continuation",
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
    "text-only",
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

Outcome: TypeAlias = Literal["client", "backpressure", "failed", "cancelled"]
"""The kind of failure that ended a request; "cancelled" is one that does not count against the worker."""


class PolicyArguments(TypedDict, total=False):
    """The keyword arguments of a policy's own `select_worker` that describe the request."""

    tokens: Tokens | None
    text: str | None
    messages: Sequence[Mapping[str, Any]] | None
    blocks: Tokens | None
    boundaries: Tokens | None
    prompt_tokens: int | None
    session: str | None
    lora: str | None
    cache_salt: str | None
    among: Iterable[object] | None
    exclude: Iterable[object] | None
    by_load: bool


class RequestArguments(PolicyArguments, total=False):
    """The keyword arguments of `Router.select_worker` that describe the request."""

    body: Buffer | None
    path: str | None
    headers: Headers | None
    model: str | None
    mm: Iterable[tuple[int, int, int]] | None
    tenant: str | None
    priority: int
    max_output_tokens: int | None
    expected_output_tokens: int | None
    cache_ttl_s: float | None


class Reservation(TypedDict):
    """Arguments with which another router books the request too, in the names of Dynamo's and Ray's selectors.

    Attributes:
        sequence_hashes: Chained hashes of the prompt's full blocks, for `blocks=`. Empty if only text is known.
        isl_tokens: Length of the prompt, for `prompt_tokens=`.
        track_prefill_tokens: Whether the worker computes the prompt; the decode worker of a pair does not.

    Example:
        >>> Reservation(sequence_hashes=[], isl_tokens=40, track_prefill_tokens=True)["isl_tokens"]
        40
    """

    sequence_hashes: list[int]
    isl_tokens: int
    track_prefill_tokens: bool


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """The router's view of a worker, or of one data-parallel rank of it. A report's value is None if unknown.

    Attributes:
        key: Key of the worker.
        dp_rank: Data-parallel rank, None for a worker with a single one.
        role: "both", "prefill" or "decode".
        state: "ready", "not ready", "draining"; or, passed over while others are available, "asleep", "failing",
            "unreachable" (no sign of life), "pushing back" (after a 429 or 503) or "overloaded" (by a veto).
        inflight: Requests booked and not finished.
        pending_prefill_tokens: Uncached prompt tokens of requests without a first token.
        decode_blocks: Blocks of requests past their first token.
        index_blocks: Its blocks in the index by medium: "gpu", "cpu", "disk", and "speculative" on their way to "gpu".
        weight: Relative capacity of the worker.
        report_age_s: Seconds since the latest load report of the worker; None before the first.
        running: Requests that the worker runs, by its latest load report.
        waiting: Requests that wait at the worker, by its latest load report.
        queued_tokens: Prompt tokens that wait at the worker, by its latest load report.
        kv_usage: Share of the worker's KV cache in use, from 0 to 1, by its latest load report.
        prefill_tps: Prompt tokens per second, by its report.
        gen_tps: Output tokens per second, by its report.
        kv_events: Its KV event statistics, None if there was no event.
        engine: Program of its engine, by its metrics page: "vllm", "sglang" or "tensorrt-llm".
        learned: Values in place of "kv_blocks", "block_size" and "gpu" (times the speed of others) that it contradicts.
    """

    key: str
    dp_rank: int | None
    role: str
    state: str = field(metadata=gauge("worker_state", "1", "state"))
    inflight: int = field(metadata=gauge("inflight", "{request}"))
    pending_prefill_tokens: int = field(metadata=gauge("pending_prefill_tokens", "{token}"))
    decode_blocks: int = field(metadata=gauge("decode_blocks", "{block}"))
    index_blocks: dict[str, int]
    weight: float = field(metadata=gauge("worker_weight"))
    report_age_s: float | None = field(metadata=gauge("worker_report_age_seconds", "s"))
    running: float | None = field(metadata=gauge("worker_running", "{request}"))
    waiting: float | None = field(metadata=gauge("worker_waiting", "{request}"))
    queued_tokens: float | None = field(metadata=gauge("worker_queued_tokens", "{token}"))
    kv_usage: float | None = field(metadata=gauge("worker_kv_usage"))
    prefill_tps: float | None
    gen_tps: float | None
    kv_events: KvEventStats | None = None
    engine: str | None = field(default=None, metadata=gauge("worker_engine", "1", "engine"))
    learned: dict[str, float] = field(default_factory=dict, metadata=gauge("worker_learned", "1", "fact"))


@dataclass(frozen=True, slots=True)
class Funnel:
    """Where prompt tokens are lost between the prompt and the engine's cache.

    Every sum is over the same requests: those that completed and whose engine reported its cached prompt tokens
    (`on_complete(cached_tokens=)`). Where the engine also reports the length of the prompt, all are counted in its
    tokens. The decode worker of a pair does not count: it reports tokens that it received as cached.

    Attributes:
        requests: Requests that the token funnel counts: completed, with cached tokens reported by the engine.
        prompt_tokens: Tokens of the prompts of these requests.
        best_matched_tokens: Tokens matched on the best candidate. The others were never computed, or left every cache.
        selected_matched_tokens: Tokens matched on the picked worker. Those lost at this step were given up for balance.
        selected_held_tokens: Tokens it held for full attention: more than matched where a hybrid model cannot resume.
        engine_cached_tokens: Tokens the engine took from its cache. Tokens lost at this step were mispredicted.
        selected_shared_tokens: Tokens of the matched ones that it was to read from the shared cache of the model.
    """

    requests: int = field(metadata=counter("funnel_requests", "{request}"))
    prompt_tokens: int = field(metadata=counter("funnel_tokens", "{token}", "step", row="prompt"))
    best_matched_tokens: int = field(metadata=counter("funnel_tokens", "{token}", "step", row="best_matched"))
    selected_matched_tokens: int = field(metadata=counter("funnel_tokens", "{token}", "step", row="selected_matched"))
    engine_cached_tokens: int = field(metadata=counter("funnel_tokens", "{token}", "step", row="engine_cached"))
    selected_held_tokens: int = field(metadata=counter("funnel_tokens", "{token}", "step", row="selected_held"))
    selected_shared_tokens: int = field(metadata=counter("funnel_tokens", "{token}", "step", row="selected_shared"))


@dataclass(frozen=True, slots=True)
class Histogram:
    """Durations in fixed buckets.

    Attributes:
        bounds: Upper bounds in seconds, inclusive.
        counts: Durations per bucket, not cumulated; the last one, beyond the bounds, is for longer durations.
        sum: Sum of the durations in seconds.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


@dataclass(frozen=True, slots=True)
class ShadowStats:
    """Comparison of a shadow policy with the router's, over the same decisions.

    Attributes:
        policy: Name of the shadow policy.
        decisions: Decisions that both the shadow and the router's policy took.
        agreed: Decisions in which the shadow picked the same worker as the router.
        matched_tokens: Prompt tokens matched on the workers that the shadow picked.
        first_matched_tokens: Prompt tokens matched on the router's picks. They filled the caches, so a shadow that
            would have spread requests otherwise is judged by a cache it did not fill.
    """

    policy: str
    decisions: int = field(metadata=counter("shadow_decisions", "{decision}"))
    agreed: int = field(metadata=counter("shadow_agreed", "{decision}"))
    matched_tokens: int = field(metadata=counter("shadow_matched_tokens", "{token}"))
    first_matched_tokens: int = field(metadata=counter("shadow_first_matched_tokens", "{token}"))

    @property
    def agreement(self) -> float | None:
        """Share of decisions in which it picked the same worker, None without any."""
        return self.agreed / self.decisions if self.decisions else None


@dataclass(frozen=True, slots=True)
class LearnedStats:
    """Statistics of a policy that learns.

    Attributes:
        version: Version of the model that decides; 0 before the first.
        samples: Requests that the policy has learned from.
        pooled: Samples in the pools.
        pending: Decisions that still wait for their reward.
        dropped: Rewards that could not be used: "missing" (no first token of a served request), "negative", "absurd"
            (more than an hour), "not-finite".
        rounds: Rounds of training by result: "swapped" (a new model decides), "refused" (it predicts worse than the
            current one or than the mean), "failed".
        training: Whether a round is running.
        round_s: Seconds of the latest round.
        rmse: Root mean square error of the model on samples it was not trained on: seconds, or shares for reward="slo".
        mae: Mean absolute error of the model on samples it was not trained on, in seconds.
        mean_rmse: Root mean square error of predicting the mean.
        mean_mae: Mean absolute error of predicting the mean.
        drift: Error on the latest requests divided by the error on held-out samples; about 1 while the model fits.
        drifting: Workers whose predictions have drifted.
        decisions: Decisions by reason.
        model: The model of the router that this is of, None for its first pool and for a policy.
        part: "whole", or the half of a pair; "shadow" for a policy that decides beside the first.
    """

    version: int = field(metadata=gauge("learned_model_version"))
    samples: int = field(metadata=counter("learned_samples", "{request}"))
    pooled: int
    pending: int
    dropped: dict[str, int] = field(metadata=counter("learned_dropped_rewards", "{event}", "reason"))
    rounds: dict[str, int] = field(metadata=counter("learned_rounds", "{event}", "result"))
    training: bool
    round_s: float
    rmse: float
    mae: float = field(metadata=gauge("learned_holdout_error"))
    mean_rmse: float
    mean_mae: float = field(metadata=gauge("learned_mean_error"))
    drift: float = field(metadata=gauge("learned_drift"))
    drifting: int = field(metadata=gauge("learned_drifting_workers", "{worker}"))
    decisions: dict[str, int]
    model: str | None = None
    part: str = "whole"


@dataclass(frozen=True, slots=True)
class PeerStats:
    """Statistics of another router.

    Attributes:
        origin: Id of its current run.
        address: Its address, or the name of the stream and of its run.
        silent_s: Seconds since the latest message of the peer.
        lag_s: Delay of the peer's messages in seconds: of its latest heartbeat over the fastest of the last minutes, or
            the age of a missing message if that is more.
        bookings: Open requests of the peer, which count as load of the workers.
        gaps: Gaps in the sequence of messages of the peer.
        snapshots: Snapshots received from the peer.

    Example:
        >>> from cachelb import Router
        >>> from cachelb.state import ZmqMesh
        >>> with Router(["gpu0"], secret="known to all gateways") as router:
        ...     router.attach(ZmqMesh("tcp://127.0.0.1:*", peers=[]))
        ...     {peer.address: peer.bookings for peer in router.stats().state.peers}
        {}
    """

    origin: int
    address: str
    silent_s: float = field(metadata=gauge("state_peer_silent_seconds", "s"))
    lag_s: float = field(metadata=gauge("state_peer_lag_seconds", "s"))
    bookings: int = field(metadata=gauge("state_peer_bookings", "{request}"))
    gaps: int = field(metadata=counter("state_peer_gaps", "{gap}"))
    snapshots: int = field(metadata=counter("state_peer_snapshots", "{snapshot}"))


@dataclass(frozen=True, slots=True)
class StateStats:
    """Statistics of shared state. Counters only rise.

    Attributes:
        origin: Id of this router's current run.
        peers: Routers that this one receives from.
        start: How the router started: "warm" if it received a snapshot, or "cold" with the reason.
        sent: Messages published to other routers.
        sent_bytes: Bytes of the messages published to other routers.
        received: Messages received from other routers.
        refused: Messages refused because they could not be read or lacked a valid seal.
        gaps: Gaps in the sequences of messages of other routers.
        snapshots: Snapshots of the index published for routers that start.
        applied: Entries of other routers that were applied.
        blocks: Blocks learned from another router first.
        orphans: Placements refused because the block before them is not in the index.
        strangers: Entries that name a worker or a model that this router does not have.
        stale: Placements in a cache that has been lost since.
        dropped: Own entries dropped because the transport was full or down.
        routes: Routes received from other routers.
        changes: Remote changes of the fleet that were the latest.
        conflicts: Placements refused because one of their blocks follows another block in the index.
        crowded: Entries refused because their router filled its part of the index; see `max_mb`.
        failures: Errors of the transport of shared state; the first of several in a row is logged.
        failing: Why sharing is down at the moment; empty when it works.

    Example:
        >>> from cachelb import Router
        >>> from cachelb.state import ZmqMesh
        >>> with Router(["gpu0"], secret="known to all gateways") as router:
        ...     router.attach(ZmqMesh("tcp://127.0.0.1:*", peers=[]))
        ...     router.stats().state.failures
        0
    """

    origin: int
    peers: tuple[PeerStats, ...]
    start: str
    sent: int = field(metadata=counter("state_messages", "{message}", "direction", row="sent"))
    sent_bytes: int = field(metadata=counter("state_sent_bytes", "By"))
    received: int = field(metadata=counter("state_messages", "{message}", "direction", row="received"))
    refused: int = field(metadata=counter("state_refused", "{message}"))
    gaps: int = field(metadata=counter("state_gaps", "{gap}"))
    snapshots: int = field(metadata=counter("state_snapshots", "{snapshot}"))
    applied: int = field(metadata=counter("state_entries", "{entry}", "result", row="applied"))
    blocks: int = field(metadata=counter("state_blocks", "{block}"))
    orphans: int = field(metadata=counter("state_entries", "{entry}", "result", row="orphan"))
    strangers: int = field(metadata=counter("state_entries", "{entry}", "result", row="stranger"))
    stale: int = field(metadata=counter("state_entries", "{entry}", "result", row="stale"))
    dropped: int = field(metadata=counter("state_entries", "{entry}", "result", row="dropped"))
    routes: int
    changes: int
    conflicts: int = field(metadata=counter("state_entries", "{entry}", "result", row="conflict"))
    crowded: int = field(metadata=counter("state_entries", "{entry}", "result", row="crowded"))
    failures: int = field(metadata=counter("state_failures", "{error}"))
    failing: str = ""


@dataclass(frozen=True, slots=True)
class DiscoveryStats:
    """Statistics of a source of workers. Counters only rise.

    Attributes:
        source: Its name.
        found: Workers in the latest answer of the source.
        waiting: Workers missing from the latest answer, kept until a second answer lacks them, too.
        answers: Answers of the source; each message of a watch counts.
        failures: Failures of the source; the workers of its last answer stay.
        waits: Answers that lacked more than half of the workers, which stay until a second answer lacks them, too.
        age_s: Seconds since the latest answer of the source; None before the first.
        failing: Why there is no answer at the moment; empty when there is.

    Example:
        >>> from cachelb_gateway.discovery import FileWorkers
        >>> FileWorkers("/etc/cachelb/workers.json").stats().found
        0
    """

    source: str
    found: int = field(default=0, metadata=gauge("discovery_workers", "{worker}", "state", row="found"))
    waiting: int = field(default=0, metadata=gauge("discovery_workers", "{worker}", "state", row="waiting"))
    answers: int = field(default=0, metadata=counter("discovery_answers", "{answer}"))
    failures: int = field(default=0, metadata=counter("discovery_failures", "{failure}"))
    waits: int = field(default=0, metadata=counter("discovery_drop_waits", "{wait}"))
    age_s: float | None = field(default=None, metadata=gauge("discovery_answer_age_seconds", "s"))
    failing: str = ""


@dataclass(frozen=True, slots=True)
class RouterStats:
    """Every counter of a router.

    Attributes:
        workers: Each worker, or each rank of it.
        decisions: Decisions by policy and reason.
        endings: Requests by outcome.
        open_requests: Requests booked and not finished, including those of routers that share state.
        funnel: Where prompt tokens are lost on the way to the engine's cache.
        bodies: Counters of request bodies.
        select_seconds: Time of selections that picked a worker, of every eighth; a pair is one, batches are not timed.
        evictions: Blocks that left the indexes, by cause: "capacity" of a worker, "ttl", "memory" limit, "removed" with
            their worker, "cleared" by a cache reset, "failed" with the request that would have stored them.
        dropped: Updates that the indexes could not apply: an "orphan" chain without its parent, a "conflict" of
            parents, an "unknown-removal"; "no-room" counts prompts that did not fit into `max_memory_mb`,
            "block-size-mismatch" times that metrics and events of an engine came to disagree. KV events that were not
            applied: "undecodable" messages, "unknown-rank", "unknown-event", "malformed-event", "unknown-medium",
            "shared-pool", "attention-group", "token-count", "block-size", "placeholder", "orphan", "full"; or not as a
            whole: "unknown-field".
        shadows: Comparisons of the shadow policies, in their order.
        index_blocks: Distinct blocks in the indexes.
        index_bytes: Memory of the block indexes in bytes, about.
        memory_bytes: Bytes of what grows with traffic: indexes, trees, sessions, captures, state of other routers.
        no_worker: Selections that found no worker.
        overloaded: Requests that an `Admission` refused.
        admission: Outcomes of the requests of each priority at an `Admission` of the router.
        unread_usage: Token counts of engines that were unreadable or implausible, and left out.
        policy: Name of the policy.
        models: Models with an index of their own.
        kv_gaps: Gaps in the sequence numbers of KV event messages.
        kv_replays: Replays by result: "complete", "short" of the requested range, "failed".
        kv_resyncs: Gaps that no replay closed.
        kv_restarts: Restarts of engines seen in KV events.
        kv_repairs: Times that a worker's blocks were dropped as inconsistent: "capacity", "cached-tokens".
        routes: Prefixes that `BoundaryLearning` remembers; at `max_routes`, the oldest are evicted.
        remote_routes: Those of them received from other routers, which are evicted first.
        learned: Statistics of `Learned`, by model and part of the router.
        state: Statistics of sharing with other routers, None where nothing is shared.
        discovery: Statistics of the attached sources of workers.
        polls: Statistics of polling metrics pages, by key of the worker.
        pulls: Copies from peers by group and outcome: landed, short, missed; those whose answer has `cached_tokens`.
        pulled_tokens: Tokens of them that came, by group.
    """

    workers: list[WorkerStats]
    decisions: dict[tuple[str, str], int] = field(metadata=counter("decisions", "{decision}", "policy", "reason"))
    endings: dict[str, int] = field(metadata=counter("requests", "{request}", "outcome"))
    open_requests: int = field(metadata=gauge("open_requests", "{request}"))
    funnel: Funnel
    bodies: BodyStats
    select_seconds: Histogram
    evictions: dict[str, int] = field(metadata=counter("evictions", "{block}", "cause"))
    dropped: dict[str, int] = field(metadata=counter("kv_dropped", "{change}", "reason"))
    shadows: tuple[ShadowStats, ...]
    index_blocks: int
    index_bytes: int = field(metadata=gauge("index_bytes", "By"))
    memory_bytes: int = field(metadata=gauge("memory_bytes", "By"))
    no_worker: int = field(metadata=counter("no_worker", "{selection}"))
    policy: str
    models: list[str]
    pulls: dict[tuple[str, str], int] = field(metadata=counter("pulls", "{copy}", "group", "outcome"))
    pulled_tokens: dict[str, int] = field(metadata=counter("pulled_tokens", "{token}", "group"))
    overloaded: int = field(default=0, metadata=counter("overloaded", "{request}"))
    admission: tuple[BandStats, ...] = ()
    unread_usage: int = field(default=0, metadata=counter("unread_usage", "{count}"))
    kv_gaps: int = field(default=0, metadata=counter("kv_gaps", "{gap}"))
    kv_replays: dict[str, int] = field(default_factory=dict, metadata=counter("kv_replays", "{replay}", "result"))
    kv_resyncs: int = field(default=0, metadata=counter("kv_resyncs", "{resync}"))
    kv_restarts: int = field(default=0, metadata=counter("kv_restarts", "{restart}"))
    kv_repairs: dict[str, int] = field(default_factory=dict, metadata=counter("kv_repairs", "{repair}", "reason"))
    routes: int = 0
    remote_routes: int = 0
    learned: tuple[LearnedStats, ...] = ()
    state: StateStats | None = None
    discovery: tuple[DiscoveryStats, ...] = ()
    polls: Mapping[str, WorkerPolls] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Restored:
    """Result of restoring a snapshot.

    Attributes:
        blocks: Blocks that were new to their workers. Those beyond the capacity are evicted again, the oldest first.
        workers: Workers of the snapshot that are registered, each rank for itself.
        unknown_workers: Workers of the snapshot that are not; their blocks are skipped.
        unknown_models: Models of the snapshot that this router lacks or has with another block size; skipped too.
        orphans: Pieces of prompts whose beginning is unknown here, because there was no room for it.
        stale: Pieces of prompts on caches that were lost since, as other routers published.
        age_s: Seconds since the snapshot was written, by the system's clock.
    """

    blocks: int
    workers: int
    unknown_workers: int
    unknown_models: int
    orphans: int
    stale: int
    age_s: float


@dataclass(frozen=True, slots=True)
class ShadowPick:
    """The pick of a shadow policy.

    Attributes:
        policy: Name of the shadow policy.
        key: Key of the worker it would have picked.
        reason: The reason of the pick.
        matched_tokens: Prompt tokens that worker held.
        agrees: Whether the router's policy picked the same worker and rank.
    """

    policy: str
    key: str
    reason: Reason
    matched_tokens: int
    agrees: bool


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """One finished request, without its prompt, salt and session.

    Attributes:
        id: The decision's id.
        part: "whole", or the half of a pair that this decision was for: "prefill" or "decode".
        time_s: When it was decided, in seconds since the epoch.
        model: Model with an index of its own, None for the first one.
        policy: Name of the policy.
        key: Key of the worker.
        dp_rank: Data-parallel rank, None for a worker with a single one.
        reason: The reason of the pick.
        prompt_tokens: Length of the prompt.
        best_matched_tokens: Prompt tokens the best candidate held.
        matched_tokens: Prompt tokens the picked worker could reuse.
        cached_tokens: Prompt tokens the engine took from its cache, None if it did not report them.
        engine_prompt_tokens: Those it counted, None if it did not report them; those of a text are an estimate.
        output_tokens: Output tokens the engine counted, None if it did not report them.
        candidates: Number of candidates.
        attempt: Number of earlier attempts.
        outcome: How the request ended.
        ttft_s: Seconds to the first token, None without one.
        duration_s: Seconds to the end.
        shadows: The picks of shadow policies.
        running: Requests the worker computed when it was picked, by its report; None without a fresh one. This and the
            fields below are of that time, before the request was added, and None in older files.
        waiting: Requests that waited there, by its report.
        kv_usage: Share of its KV cache in use, by its report.
        stale_load: Whether its latest report was stale.
        inflight: Requests in flight there.
        pending_prefill_tokens: Uncached prompt tokens of requests without a first token.
        decode_tokens: Tokens of the blocks of requests past their first token.
        credited_tokens: `matched_tokens`, but blocks outside device memory count by the credit of their medium.
        gpu: Its device, from `add_worker(gpu=)`.
        convention: Convention by which the conversation is known, such as "claude-code".
        held_tokens: Tokens it held for full attention: more than matched where a hybrid model could not resume so far.
        shared_tokens: Those of `matched_tokens` that it was to read from the shared cache of the model.
        pulled_tokens: Further ones to copy from a peer (`Decision.kv_source`).
        queued_s: Seconds that the request waited at an `Admission` before it was decided.
    """

    id: str
    part: str
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
    engine_prompt_tokens: int | None
    output_tokens: int | None
    candidates: int
    attempt: int
    outcome: str | None
    ttft_s: float | None
    duration_s: float | None
    shadows: tuple[ShadowPick, ...]
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    stale_load: bool | None = None
    inflight: int | None = None
    pending_prefill_tokens: int | None = None
    decode_tokens: int | None = None
    credited_tokens: float | None = None
    gpu: str | None = None
    convention: str | None = None
    held_tokens: int | None = None
    shared_tokens: int | None = None
    pulled_tokens: int | None = None
    queued_s: float | None = None
