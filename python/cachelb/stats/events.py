"""Statistics of the KV events of a worker, and of the cache groups that they describe."""

from __future__ import annotations

from dataclasses import dataclass, field

from cachelb.common.measure import counter, gauge


@dataclass(frozen=True, slots=True)
class CacheGroupStats:
    """A cache group of an engine, as its events describe it.

    Attributes:
        id: Its number, None if events do not name it.
        kind: Attention of its layers, such as "full_attention" or "mamba"; None if events do not name it.
        block_size: Tokens per block, None until it is known.
        window: Tokens of its sliding window, None for other kinds.
        blocks: Blocks that it holds.

    Example:
        >>> CacheGroupStats(0, "sliding_window", 32, 128, 4).window
        128
    """

    id: int | None
    kind: str | None
    block_size: int | None
    window: int | None
    blocks: int


@dataclass(frozen=True, slots=True)
class KvEventStats:
    """KV event statistics of a worker, or of one data-parallel rank of it. Counters only rise.

    Attributes:
        state: "starting" until the first replay is over; "live"; "suspect" while missing messages are requested, when
            no block counts as confirmed; "degraded" once messages are lost for good, until the engine restarts or
            drops its cache; "refused" if no event of the engine can be used.
        fed: Whether the index of this worker is fed by events; if not, by decisions.
        refused: Why no event can be used.
        engine_block_size: Tokens per block of the engine, None until it is known.
        mismatch: The contradiction if the engine's metrics state another size, else None.
        lag_s: Seconds between creation and arrival of the latest message, by the clocks of both machines.
        messages: Messages applied.
        duplicates: Messages that had been applied before.
        events: Events by kind ("store", "remove", "clear") and medium ("gpu", "cpu", "disk", "any", "shared",
            "unknown").
        stored_blocks: Blocks announced by stores that were applied.
        removed_blocks: Blocks named by removals that were applied.
        unknown_removals: Removed blocks that were not in the index.
        reannounced: Stores of blocks that were held already.
        parked: Stores that waited for their parent.
        side_stores: Stores of groups that do not attend to the whole prefix, which decide where prompts resume.
        side_parked: Blocks of such groups that waited for the block they name.
        side_unresolved: Blocks of such groups that waited in vain; prompts do not resume there.
        unknown_kinds: Groups of an unknown kind; nothing resumes on a worker with one.
        groups: The cache groups of its engine, in the order their events came.
        doubted_blocks: Confirmed blocks that became doubtful when a message was lost for good.
        gaps: Gaps in the sequence numbers of messages.
        resyncs: Gaps that no replay closed, after which known blocks became doubtful.
        restarts: Restarts of the engine.
        checked: Requests whose cached tokens, as the engine reported them, were compared with the events' prediction.
        found_less: Those with fewer cached tokens, by more than a block, that no event explains.
        drafts: Whether its engine drafts with EAGLE or MTP, by its cache layout or as its answers are a block short.
        repairs: Times that the worker's blocks were dropped as inconsistent, and requested again where possible:
            "capacity", more blocks than `kv_blocks`; "cached-tokens", too many of `found_less`.
        dropped: Entries that could not be applied, by reason.
        memory_bytes: Native memory of the names of its blocks, about.
    """

    state: str = field(metadata=gauge("kv_stream_state", "1", "state"))
    fed: bool
    refused: str | None
    engine_block_size: int | None
    mismatch: str | None
    lag_s: float | None = field(metadata=gauge("kv_event_lag_seconds", "s"))
    messages: int
    duplicates: int
    events: dict[tuple[str, str], int] = field(metadata=counter("kv_events", "{event}", "kind", "medium"))
    stored_blocks: int
    removed_blocks: int
    unknown_removals: int
    reannounced: int
    parked: int
    side_stores: int
    side_parked: int
    side_unresolved: int
    unknown_kinds: int
    groups: tuple[CacheGroupStats, ...]
    doubted_blocks: int
    gaps: int
    resyncs: int
    restarts: int
    checked: int
    found_less: int
    drafts: bool
    repairs: dict[str, int]
    dropped: dict[str, int]
    memory_bytes: int
