"""Value types handed to callers."""

from __future__ import annotations

from dataclasses import dataclass, field
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
"""What kind of failure ended a request; "cancelled" is one that shows nothing of the worker."""


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
    boundaries: Tokens | None
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
class KvEventStats:
    """What KV events say of a worker, or of one data-parallel rank of it. Counters only rise.

    Attributes:
        state: "starting" until the first replay is over; "live"; "suspect" while messages are missing and asked for,
            when nothing counts as confirmed; "degraded" once messages are lost for good, until the engine starts
            over or drops its cache; "refused" if nothing of the engine can be used.
        fed: Whether the index holds what events said; if not, what decisions brought.
        refused: Why nothing can be used.
        engine_block_size: Tokens per block of the engine, None until it is known.
        mismatch: What speaks against that: the engine's metrics state another size. None if nothing does.
        lag_s: Seconds between the making of the latest message and its arrival, by the clocks of both machines.
        messages: Messages applied.
        duplicates: Messages that had been applied already.
        events: Events by kind ("store", "remove", "clear") and medium ("gpu", "cpu", "disk", "any", "shared",
            "unknown").
        stored_blocks: Blocks announced by stores that were applied.
        removed_blocks: Blocks named by removals that were applied.
        unknown_removals: Removed blocks that were not known.
        reannounced: Stores that repeated what was held.
        parked: Stores that waited for their parent.
        doubted_blocks: Confirmed blocks that became doubtful when a message was lost for good.
        settled_blocks: Doubtful blocks that a later store showed to be there.
        gaps: Gaps in the numbers of messages.
        resyncs: Gaps that no replay closed: what was known became doubtful.
        restarts: Restarts of the engine.
        checked: Requests for which the cached tokens that the engine reported were compared with what events promised.
        found_less: Those for which it found less, by more than a block, and no event said why.
        repairs: Times that what was known was dropped, and asked for again where that can be, because it could not be
            true: "capacity", more blocks than `kv_blocks`; "cached-tokens", too many of `found_less`.
        dropped: What could not be applied, by reason.
        memory_bytes: Native memory of the names of its blocks.
    """

    state: str
    fed: bool
    refused: str | None
    engine_block_size: int | None
    mismatch: str | None
    lag_s: float | None
    messages: int
    duplicates: int
    events: dict[tuple[str, str], int]
    stored_blocks: int
    removed_blocks: int
    unknown_removals: int
    reannounced: int
    parked: int
    doubted_blocks: int
    settled_blocks: int
    gaps: int
    resyncs: int
    restarts: int
    checked: int
    found_less: int
    repairs: dict[str, int]
    dropped: dict[str, int]
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """What a router knows of a worker, or of one data-parallel rank of it. A report's value is None if unknown.

    Attributes:
        key: Key of the worker.
        dp_rank: Data-parallel rank, None if it has one.
        role: "both", "prefill" or "decode".
        state: "ready", "not ready", "draining", "failing" while failures keep it out, "pushing back" while it rests
            after a 429 or 503, or "overloaded" by a veto on its report. The last three are passed over only while
            others are not.
        inflight: Requests booked and not finished.
        pending_prefill_tokens: Uncached prompt tokens of those without a first token.
        decode_blocks: Blocks of those past their first token.
        index_blocks: Blocks it is believed to hold, by medium ("gpu", "cpu", "disk"); none where it holds nothing. Of a
            worker with KV events these are confirmed; "speculative" are those on their way to "gpu".
        weight: Relative capacity.
        report_age_s: Age of its latest report in seconds, None if it never reported.
        running: Requests it computes, by its report.
        waiting: Requests that wait, by its report.
        queued_tokens: Prompt tokens that wait, by its report.
        kv_usage: Part of its KV cache in use, by its report.
        prefill_tps: Prompt tokens per second, by its report.
        gen_tps: Output tokens per second, by its report.
        kv_events: What KV events say of it, None if there was none.
    """

    key: str
    dp_rank: int | None
    role: str
    state: str
    inflight: int
    pending_prefill_tokens: int
    decode_blocks: int
    index_blocks: dict[str, int]
    weight: float
    report_age_s: float | None
    running: float | None
    waiting: float | None
    queued_tokens: float | None
    kv_usage: float | None
    prefill_tps: float | None
    gen_tps: float | None
    kv_events: KvEventStats | None = None


@dataclass(frozen=True, slots=True)
class Funnel:
    """Where prompt tokens are lost between the prompt and the engine's cache.

    Every sum is over the same requests: those that completed and whose engine said how many of its prompt tokens were
    cached (`on_complete(cached_tokens=)`). Where the engine also says how long the prompt was, all are counted in its
    tokens, since the length of a prompt given as text is an estimate. The decode worker of a pair does not count: it
    reports what the prefill worker sent it as cached.

    Attributes:
        requests: Requests.
        prompt_tokens: Tokens of their prompts.
        best_matched_tokens: Tokens the best candidate was believed to hold. What is missing here was never computed
            before, or has left every cache.
        selected_matched_tokens: Tokens the picked worker was believed to hold. What is missing here was given up for
            balance.
        engine_cached_tokens: Tokens the engine took from its cache. What is missing here the router believed wrongly.
    """

    requests: int
    prompt_tokens: int
    best_matched_tokens: int
    selected_matched_tokens: int
    engine_cached_tokens: int


@dataclass(frozen=True, slots=True)
class Histogram:
    """Durations in fixed buckets.

    Attributes:
        bounds: Upper bounds in seconds, inclusive.
        counts: Durations per bucket, not cumulated; one more than there are bounds, for what is longer than the last.
        sum: Sum of the durations in seconds.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


@dataclass(frozen=True, slots=True)
class ShadowStats:
    """How a shadow policy compares with the router's, over the same decisions.

    Attributes:
        policy: Name of the shadow policy.
        decisions: Decisions both took.
        agreed: Those in which it picked the same worker.
        matched_tokens: Prompt tokens its picks were believed to hold.
        first_matched_tokens: Prompt tokens the router's picks were believed to hold. The placements are those of the
            router's policy, so a shadow that would have spread requests otherwise is judged by a cache it did not fill.
    """

    policy: str
    decisions: int
    agreed: int
    matched_tokens: int
    first_matched_tokens: int

    @property
    def agreement(self) -> float | None:
        """Share of decisions in which it picked the same worker, None without any."""
        return self.agreed / self.decisions if self.decisions else None


@dataclass(frozen=True, slots=True)
class LearnedStats:
    """What a policy that learns has learned.

    Attributes:
        version: Number of the model that decides, 0 without one.
        samples: Requests learned from.
        pooled: Samples that the pools hold.
        pending: Decisions whose reward is still to come.
        dropped: Rewards that taught nothing: "missing" first tokens of requests that were served, "negative", "absurd"
            (more than an hour) and "not-finite" ones.
        rounds: Rounds of training by how they ended: "swapped" in a model, "refused" one that was worse than the one
            before or than predicting the mean, "failed".
        training: Whether a round runs.
        round_s: Seconds the latest took.
        rmse: Root mean square error of the model, on samples it was not trained on: in seconds, or for reward="slo"
            shares.
        mae: Mean absolute error of the model, likewise.
        mean_rmse: Root mean square error of predicting the mean.
        mean_mae: Mean absolute error of predicting the mean.
        drift: Mean absolute error of the latest requests, in those of the hold-out: about 1 as long as the model fits.
        drifting: Workers on which the model is off.
        decisions: Decisions by reason.
        model: The model of the router that this is of, None for its first pool and for a policy.
        part: "whole", or the half of a pair; "shadow" for a policy that decides beside the first.
    """

    version: int
    samples: int
    pooled: int
    pending: int
    dropped: dict[str, int]
    rounds: dict[str, int]
    training: bool
    round_s: float
    rmse: float
    mae: float
    mean_rmse: float
    mean_mae: float
    drift: float
    drifting: int
    decisions: dict[str, int]
    model: str | None = None
    part: str = "whole"


@dataclass(frozen=True, slots=True)
class PeerStats:
    """Another router.

    Attributes:
        origin: Names one life of it.
        address: Where it is heard: its address, or the name of the stream and of its life.
        silent_s: Seconds since it was heard last.
        lag_s: Seconds that what it says is late: its latest heartbeat beyond the fastest of the last minute or two, or
            for how long something that it said has been missing, whichever is more.
        bookings: Its open requests, which count as load here.
        gaps: How often something it said was missing.
        snapshots: How often it told everything.

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
    silent_s: float
    lag_s: float
    bookings: int
    gaps: int
    snapshots: int


@dataclass(frozen=True, slots=True)
class StateStats:
    """What was told and heard. Counters only rise.

    Attributes:
        origin: Names this life of this router.
        peers: Routers that are heard.
        start: How the router began: "cold" with the reason, or what it was told by.
        sent: Messages told.
        sent_bytes: Their bytes.
        received: Messages of others.
        refused: Messages that could not be read, or have no valid seal.
        gaps: How often something was missing.
        snapshots: How often everything was told here.
        applied: Entries of others applied.
        blocks: Blocks that others placed and nobody here knew of.
        orphans: Placements behind blocks that are not known here.
        strangers: Entries on workers or models that are not known here.
        stale: Placements on caches that were lost since.
        dropped: Own entries dropped because nobody took them.
        routes: Routes that others learned, taken in.
        changes: Changes of the fleet by others that were the last word.
        conflicts: Placements refused whole, as a block of theirs is known behind another one.
        crowded: Entries refused, as their router had too many here already; see `max_mb`.
        failures: Errors of the transport, each logged once in a row.
        failing: Why nothing is shared at the moment; empty when it works.

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
    sent: int
    sent_bytes: int
    received: int
    refused: int
    gaps: int
    snapshots: int
    applied: int
    blocks: int
    orphans: int
    strangers: int
    stale: int
    dropped: int
    routes: int
    changes: int
    conflicts: int
    crowded: int
    failures: int
    failing: str = ""


@dataclass(frozen=True, slots=True)
class RouterStats:
    """Every counter of a router.

    Attributes:
        workers: Each worker, or each rank of it.
        decisions: Decisions by policy and reason.
        endings: Requests by how they ended.
        open_requests: Requests booked and not finished, those of routers that it shares with too.
        funnel: Where prompt tokens are lost on the way to the engine's cache.
        select_seconds: How long selections took that picked somebody, of which every eighth is timed; a pair is one.
            Batches are not timed.
        evictions: Blocks that left the indexes, by cause: "capacity" of a worker, "ttl", "memory" limit, "removed"
            with their worker, "cleared" by a cache reset, "failed" with the request that was to bring them.
        dropped: What the indexes were told and could not take: an "orphan" chain without its parent, a "conflict" of
            parents, an "unknown-removal"; "no-room" counts prompts that did not fit into `max_memory_mb`, or not
            to their end, "block-size-mismatch" the times that metrics and events of an engine came to disagree about
            its block size (`KvEventStats.mismatch`). And what KV events said that could not be applied: "undecodable"
            messages, "unknown-rank", "unknown-event", "malformed-event", "unknown-medium", "shared-pool",
            "attention-group", "token-count", "block-size", "placeholder", "orphan", "full".
        shadows: How the shadow policies compare, in their order.
        index_blocks: Distinct blocks known.
        index_bytes: Bytes of the block indexes.
        memory_bytes: Bytes of native memory.
        no_worker: Selections that found nobody.
        unread_usage: Counts of engines that could not be read or believed, and were left out.
        policy: Name of the policy.
        models: Models with an index of their own.
        kv_gaps: Gaps in the numbers of KV event messages.
        kv_replays: Replays by how they ended: "complete", "short" of what was asked for, "failed".
        kv_resyncs: Gaps that no replay closed.
        kv_restarts: Restarts of engines that KV events showed.
        kv_repairs: Times that what events said could not be true and was dropped: "capacity", "cached-tokens".
        routes: Prefixes that `BoundaryLearning` remembers; where it stays at `max_routes`, the oldest are given up.
        remote_routes: Those of them that other routers told of, which go first.
        learned: What `Learned` learned, by model and part of the router.
        state: How sharing with other routers goes, None where nothing is shared.
    """

    workers: list[WorkerStats]
    decisions: dict[tuple[str, str], int]
    endings: dict[str, int]
    open_requests: int
    funnel: Funnel
    select_seconds: Histogram
    evictions: dict[str, int]
    dropped: dict[str, int]
    shadows: tuple[ShadowStats, ...]
    index_blocks: int
    index_bytes: int
    memory_bytes: int
    no_worker: int
    policy: str
    models: list[str]
    unread_usage: int = 0
    kv_gaps: int = 0
    kv_replays: dict[str, int] = field(default_factory=dict)
    kv_resyncs: int = 0
    kv_restarts: int = 0
    kv_repairs: dict[str, int] = field(default_factory=dict)
    routes: int = 0
    remote_routes: int = 0
    learned: tuple[LearnedStats, ...] = ()
    state: StateStats | None = None


@dataclass(frozen=True, slots=True)
class Restored:
    """What a router took in from a snapshot.

    Attributes:
        blocks: Blocks that its workers were not known to hold before. What there is no room for is evicted again, what
            was used longest ago first.
        workers: Workers of the snapshot that are registered, each rank for itself.
        unknown_workers: Workers of the snapshot that are not; what they held is skipped.
        unknown_models: Models of the snapshot that this router does not have or cuts into other blocks; skipped too.
        orphans: Pieces of prompts whose beginning is not known here, because there was no room for it.
        stale: Pieces of prompts on caches that were lost since, as other routers told.
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
    """What a shadow policy would have done.

    Attributes:
        policy: Name of the shadow policy.
        key: Key of the worker it would have picked.
        reason: Why.
        matched_tokens: Prompt tokens that worker held.
        agrees: Whether the router's policy picked the same, of the ranks of a worker the same one.
    """

    policy: str
    key: str
    reason: Reason
    matched_tokens: int
    agrees: bool


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """One finished request. Nothing of its prompt, salt or session.

    Attributes:
        id: The decision's id.
        part: "whole", or the half of a pair that this decision was for: "prefill" or "decode".
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
        engine_prompt_tokens: Prompt tokens the engine counted, None if it did not say; `prompt_tokens` is an estimate
            for a prompt given as text.
        output_tokens: Output tokens the engine counted, None if it did not say.
        candidates: Workers that took part.
        attempt: How often the request was tried before.
        outcome: How it ended.
        ttft_s: Seconds to the first token, None without one.
        duration_s: Seconds to the end.
        shadows: What shadow policies would have done.
        running: Requests the worker computed when it was picked, by its report; None if it had none that was fresh.
            What follows is of the same time, before the request was added, and None in files of versions that did not
            keep it.
        waiting: Requests that waited there, by its report.
        kv_usage: Share of its KV cache in use, by its report.
        stale_load: Whether its latest report was too old to tell anything.
        inflight: Requests in flight there.
        pending_prefill_tokens: Uncached prompt tokens of those without a first token.
        decode_tokens: Tokens of the blocks of those past their first token.
        credited_tokens: `matched_tokens`, but blocks outside device memory count by the credit of where they lie.
        gpu: Its device, as `add_worker(gpu=)` named it.
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
