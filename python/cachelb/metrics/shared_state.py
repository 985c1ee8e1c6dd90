"""The families of state that routers share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachelb.metrics.family import counter, gauge, rows_of, single

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cachelb.metrics.family import Family, Row
    from cachelb.types import PeerStats, StateStats


def of_state(stats: StateStats | None) -> Iterator[Family]:
    """Make the families of shared state; where nothing is shared, they have no series."""
    peers = {} if stats is None else {peer.address or f"{peer.origin:016x}": peer for peer in stats.peers}
    count = None if stats is None else len(stats.peers)
    yield gauge("state_peers", "Other routers that are heard.", "{router}", (), single(count))
    started: list[Row] = [] if stats is None else [(_start(stats.start), 1)]
    text = "1 for how the router began to share: warm, told by another one, or cold."
    yield gauge("state_started", text, "1", ("start", "detail"), started)
    yield from _of_peers(peers)
    messages = {} if stats is None else {"sent": stats.sent, "received": stats.received}
    yield counter("state_messages", "Messages of shared state.", "{message}", ("direction",), rows_of(messages))
    for name, text, unit in (
        ("sent_bytes", "Bytes told.", "By"),
        ("refused", "Messages of others that could not be read.", "{message}"),
        ("gaps", "Times that something others said was missing.", "{gap}"),
        ("snapshots", "Times that another router told everything.", "{snapshot}"),
        ("failures", "Errors of the transport.", "{error}"),
        ("blocks", "Blocks that others placed and nobody here knew of.", "{block}"),
    ):
        yield counter(f"state_{name}", text, unit, (), single(None if stats is None else getattr(stats, name)))
    results = ("applied", "orphans", "strangers", "stale", "dropped", "conflicts", "crowded")
    entries = {} if stats is None else {name.removesuffix("s"): getattr(stats, name) for name in results}
    yield counter("state_entries", "Entries by what became of them.", "{entry}", ("result",), rows_of(entries))


def _of_peers(peers: dict[str, PeerStats]) -> Iterator[Family]:
    for name, text, unit, attribute in (
        ("silent_seconds", "Time since another router was heard last.", "s", "silent_s"),
        ("lag_seconds", "How late what another router says arrives.", "s", "lag_s"),
        ("bookings", "Open requests of another router, which count as load here.", "{request}", "bookings"),
    ):
        yield gauge(f"state_peer_{name}", text, unit, ("peer",), _rows(peers, attribute))
    for name, text, unit in (
        ("gaps", "Times that something another router said was missing.", "{gap}"),
        ("snapshots", "Times that it told everything.", "{snapshot}"),
    ):
        yield counter(f"state_peer_{name}", text, unit, ("peer",), _rows(peers, name))


def _rows(peers: dict[str, PeerStats], attribute: str) -> list[Row]:
    return [((name,), getattr(peer, attribute)) for name, peer in peers.items()]


def _start(told: str) -> tuple[str, str]:
    start, _, detail = told.partition(": ")
    return start, detail
