"""How sharing goes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PeerStats:
    """Another router.

    Attributes:
        origin: Names one life of it.
        address: Where it is heard: its address, or the name of the stream and of its life.
        silent_s: Seconds since it was heard last.
        bookings: Its open requests, which count as load here.
        gaps: How often something it said was missing.
        snapshots: How often it told everything.
    """

    origin: int
    address: str
    silent_s: float
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
        failures: Errors of the transport, each logged once in a row.
        failing: Why nothing is shared at the moment; empty when it works.
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
    failures: int
    failing: str = ""
