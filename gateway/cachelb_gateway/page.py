"""Reads a router's metrics page back into figures, for programs outside the gateway.

The page may hold other metrics too: lines other than samples of `cachelb_` are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from math import isinf, isnan
from typing import Any, TypeVar

from cachelb.common.exposition import Samples, split_series, unescape
from cachelb.common.measure import measures
from cachelb.types import PeerStats, WorkerStats

_K = TypeVar("_K", str, float)
_SAMPLES = Samples(rb"cachelb_[a-z_]++")

_GAUGES = {each.name: each.field for each in measures(WorkerStats)}
_PEER_GAUGES = {each.name: each.field for each in measures(PeerStats)}
_BY_LABEL = {
    "requests": ("requests", "outcome"),
    "funnel_tokens": ("funnel", "step"),
    "evictions": ("evictions", "cause"),
}
_TOTALS = ("open_requests", "no_worker", "abandoned", "index_bytes", "memory_bytes")


@dataclass(slots=True)
class WorkerFigures:
    """One worker, or one data-parallel rank of it, as the page shows it; None is not shown."""

    worker: str
    dp_rank: str  # empty without ranks
    state: str | None = None  # "ready", or why it takes no requests
    inflight: float | None = None  # requests booked and not ended
    pending_prefill_tokens: float | None = None  # uncached tokens of requests before their first token
    decode_blocks: float | None = None  # of requests past it
    index_blocks: dict[str, float] = field(default_factory=dict)  # in the index, by medium
    running: float | None = None  # in its engine
    waiting: float | None = None  # in its engine
    kv_usage: float | None = None  # share of its KV cache in use
    report_age_s: float | None = None  # of its latest report


@dataclass(slots=True)
class PeerFigures:
    """Another router that this one shares its state with, as the page shows it; None is not shown."""

    peer: str  # address, or number
    silent_s: float | None = None  # since its latest message
    lag_s: float | None = None  # delay of its messages
    bookings: float | None = None  # its open requests
    gaps: float | None = None  # times a message of it was missing
    snapshots: float | None = None  # times it sent its whole state


@dataclass(slots=True)
class SharingFigures:
    """State shared with other routers, as the page shows it."""

    start: str = ""  # "warm" or "cold", with the reason
    peers: list[PeerFigures] = field(default_factory=list)
    # `sent`, `received`, `sent_bytes`, `refused`, `gaps`, `snapshots`, `failures`, `blocks`, and entries by result
    counts: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Figures:
    """The content of a router's metrics page."""

    workers: list[WorkerFigures] = field(default_factory=list)
    decisions: dict[tuple[str, str], float] = field(default_factory=dict)  # by policy and reason
    requests: dict[str, float] = field(default_factory=dict)  # by outcome
    funnel: dict[str, float] = field(default_factory=dict)  # prompt tokens by step of the token funnel
    evictions: dict[str, float] = field(default_factory=dict)  # blocks that left the indexes, by cause
    # by policy: `decisions`, `agreed`, `matched_tokens`, `first_matched_tokens`
    shadows: dict[str, dict[str, float]] = field(default_factory=dict)
    # `open_requests`, `no_worker`, `abandoned`, `index_bytes`, `memory_bytes`
    totals: dict[str, float] = field(default_factory=dict)
    select_buckets: dict[float, float] = field(default_factory=dict)  # selections by upper bound in seconds, cumulated
    first_byte_buckets: dict[float, float] = field(default_factory=dict)  # streams of `cachelb serve`, likewise
    sharing: SharingFigures | None = None  # None where nothing is shared

    @property
    def decided(self) -> float:
        """Picks of all reasons."""
        return sum(self.decisions.values())

    def select_seconds(self, share: float) -> float | None:
        """Return the upper bound in seconds of the bucket that reaches a share of the selections, None for none."""
        return seconds_within(self.select_buckets, share)

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes by name as JSON values; selection times as bounds of two shares."""
        document = asdict(self)
        del document["select_buckets"], document["first_byte_buckets"]
        document["decisions"] = [
            {"policy": policy, "reason": reason, "count": count} for (policy, reason), count in self.decisions.items()
        ]
        document["select_seconds"] = shares(self.select_buckets)
        return document


def seconds_within(buckets: Mapping[float, float], share: float) -> float | None:
    """Return the upper bound of the bucket that reaches a share of all; None without any, counts are cumulated."""
    ordered = sorted(buckets.items())
    if not ordered or ordered[-1][1] <= 0:
        return None
    return next(bound for bound, count in ordered if count >= share * ordered[-1][1])


def shares(buckets: Mapping[float, float]) -> dict[str, float | None]:
    """Return the bounds of half and of 99 % as JSON values; None beyond the last bound."""
    bounds = {"p50": seconds_within(buckets, 0.5), "p99": seconds_within(buckets, 0.99)}
    return {name: None if bound == float("inf") else bound for name, bound in bounds.items()}


def read_page(page: bytes) -> Figures | None:
    r"""Read a page in Prometheus or OpenMetrics text format; None if it shows no router.

    Example:
        >>> figures = read_page(b'cachelb_inflight{dp_rank="",worker="gpu0"} 2.0\n')
        >>> figures.workers[0].worker, figures.workers[0].inflight
        ('gpu0', 2.0)
        >>> read_page(b"up 1\n") is None
        True
    """
    figures = Figures()
    workers: dict[tuple[str, str], WorkerFigures] = {}
    peers: dict[str, PeerFigures] = {}
    is_router = False
    for name, labels, value in _samples(page):
        is_router = True
        if name.startswith("gateway_"):  # its worker is "" for answers of the gateway itself
            if name == "gateway_first_byte_seconds_bucket":
                _add(figures.first_byte_buckets, _number(labels.get("le", "")), value)
        elif "worker" in labels:
            key = (labels["worker"], labels.get("dp_rank", ""))
            _of_worker(workers.setdefault(key, WorkerFigures(*key)), name, labels, value)
        elif name.startswith("state_"):
            figures.sharing = figures.sharing or SharingFigures()
            if "peer" not in labels:
                _of_sharing(figures.sharing, name.removeprefix("state_"), labels, value)
            elif name in _PEER_GAUGES:
                setattr(peers.setdefault(labels["peer"], PeerFigures(labels["peer"])), _PEER_GAUGES[name], value)
        else:
            _of_router(figures, name, labels, value)
    figures.workers = list(workers.values())
    if figures.sharing is not None:
        figures.sharing.peers = list(peers.values())
    return figures if is_router else None


def _samples(page: bytes) -> Iterator[tuple[str, dict[str, str], float]]:
    for series, number in _SAMPLES.of(page):
        value = _number(number)
        if value is None or isinf(value):
            continue
        name, labels = split_series(series)
        if not name.endswith(b"_created"):
            read = {label.decode(): unescape(text) for label, text in labels.items()}
            yield name.decode().removeprefix("cachelb_").removesuffix("_total"), read, value


def _of_worker(worker: WorkerFigures, name: str, labels: Mapping[str, str], value: float) -> None:
    if name == "worker_state":
        worker.state = labels.get("state") if value == 1 else worker.state
    elif name == "index_blocks":
        _add(worker.index_blocks, labels.get("medium", ""), value)
    elif hasattr(worker, field := _GAUGES.get(name, "")):
        setattr(worker, field, value)


def _of_router(figures: Figures, name: str, labels: Mapping[str, str], value: float) -> None:
    match name, labels:
        case "select_seconds_bucket", {"le": bound}:
            _add(figures.select_buckets, _number(bound), value)
        case "decisions", {"policy": policy, "reason": reason}:
            figures.decisions[policy, reason] = value
        case _, {"policy": policy} if name.startswith("shadow_"):
            figures.shadows.setdefault(policy, {})[name.removeprefix("shadow_")] = value
        case _ if name in _BY_LABEL:
            attribute, label = _BY_LABEL[name]
            getattr(figures, attribute)[labels.get(label, "")] = value
        case _ if name in _TOTALS:
            figures.totals[name] = value


def _of_sharing(sharing: SharingFigures, name: str, labels: Mapping[str, str], value: float) -> None:
    match name, labels:
        case "started", _:
            sharing.start = ": ".join(filter(None, (labels.get("start"), labels.get("detail"))))
        case ("messages", {"direction": kind}) | ("entries", {"result": kind}):
            sharing.counts[kind] = value
        case _ if name != "peers":
            sharing.counts[name] = value


def _add(counts: dict[_K, float], key: _K | None, value: float) -> None:
    """Add up series that differ in other labels."""
    if key is not None:
        counts[key] = counts.get(key, 0.0) + value


def _number(text: str | bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return None if isnan(value) else value
