"""Reads a metrics page that shows a router back into figures, for programs that look at it from outside.

The page may hold anything else too: lines that are no samples of `cachelb_` are passed over.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from math import isinf, isnan
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# The quantifiers are possessive: no page makes them backtrack.
_SAMPLE = re.compile(
    r'^cachelb_([a-z_]++)(?:\{((?:[^"}\n]++|"(?:[^"\\\n]++|\\.)*+")*+)\})?+[ \t]++([^ \t\r\n]++)', re.MULTILINE
)
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*+)="((?:[^"\\\n]++|\\.)*+)"')
_ESCAPE = re.compile(r"\\(.)")
_UNESCAPED = {"n": "\n"}

_GAUGES = {
    "inflight": "inflight",
    "pending_prefill_tokens": "pending_prefill_tokens",
    "decode_blocks": "decode_blocks",
    "worker_running": "running",
    "worker_waiting": "waiting",
    "worker_kv_usage": "kv_usage",
    "worker_report_age_seconds": "report_age_s",
}
_PEER_GAUGES = {
    "silent_seconds": "silent_s",
    "lag_seconds": "lag_s",
    "bookings": "bookings",
    "gaps": "gaps",
    "snapshots": "snapshots",
}
_TOTALS = ("open_requests", "no_worker", "abandoned", "index_bytes", "memory_bytes")


@dataclass(slots=True)
class WorkerFigures:
    """One worker, or one data-parallel rank of it, as the page shows it; None is not shown.

    Attributes:
        worker: Its key.
        dp_rank: Its rank, empty if it has none.
        state: "ready", or why it takes no requests.
        inflight: Requests booked and not ended.
        pending_prefill_tokens: Uncached tokens without a first token.
        decode_blocks: Blocks of requests past it.
        index_blocks: Blocks it is believed to hold, by medium.
        running: Requests its engine computes.
        waiting: Requests that wait there.
        kv_usage: Part of its KV cache in use.
        report_age_s: Age of its latest report.
    """

    worker: str
    dp_rank: str
    state: str | None = None
    inflight: float | None = None
    pending_prefill_tokens: float | None = None
    decode_blocks: float | None = None
    index_blocks: dict[str, float] = field(default_factory=dict)
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    report_age_s: float | None = None


@dataclass(slots=True)
class PeerFigures:
    """Another router that this one shares its state with, as the page shows it; None is not shown.

    Attributes:
        peer: Its address, or its number.
        silent_s: Seconds since it was heard last.
        lag_s: Seconds that what it says arrives late.
        bookings: Its open requests.
        gaps: Times that something of it was missing.
        snapshots: Times that it told everything.
    """

    peer: str
    silent_s: float | None = None
    lag_s: float | None = None
    bookings: float | None = None
    gaps: float | None = None
    snapshots: float | None = None


@dataclass(slots=True)
class SharingFigures:
    """How sharing state with other routers goes, as the page shows it.

    Attributes:
        start: How it began: "warm" or "cold", with the reason.
        peers: The other routers, in the order of the page.
        counts: `sent` and `received` messages, `sent_bytes`, `refused`, `gaps`, `snapshots`, `failures`, `blocks`, and
            entries `applied`, `orphan`, `stranger`, `stale`, `dropped`.
    """

    start: str = ""
    peers: list[PeerFigures] = field(default_factory=list)
    counts: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Figures:
    """What one page says of a router.

    Attributes:
        workers: The workers, in the order of the page.
        decisions: Picks by policy and reason.
        requests: Requests by how they ended.
        funnel: Prompt tokens by step of the token funnel.
        evictions: Blocks that left the indexes, by cause.
        shadows: By shadow policy: `decisions`, `agreed`, `matched_tokens`, `first_matched_tokens`.
        totals: `open_requests`, `no_worker`, `abandoned`, `index_bytes`, `memory_bytes`.
        select_buckets: Selections by upper bound in seconds, cumulated.
        sharing: How sharing with other routers goes, None where nothing is shared.
    """

    workers: list[WorkerFigures] = field(default_factory=list)
    decisions: dict[tuple[str, str], float] = field(default_factory=dict)
    requests: dict[str, float] = field(default_factory=dict)
    funnel: dict[str, float] = field(default_factory=dict)
    evictions: dict[str, float] = field(default_factory=dict)
    shadows: dict[str, dict[str, float]] = field(default_factory=dict)
    totals: dict[str, float] = field(default_factory=dict)
    select_buckets: dict[float, float] = field(default_factory=dict)
    sharing: SharingFigures | None = None

    @property
    def decided(self) -> float:
        """Picks, whatever the reason."""
        return sum(self.decisions.values())

    def select_seconds(self, share: float) -> float | None:
        """Bound the time of a share of the selections.

        Args:
            share: Which share of them, such as 0.99.

        Returns:
            The upper bound in seconds of the bucket that reaches it, None without selections.
        """
        buckets = sorted(self.select_buckets.items())
        if not buckets or buckets[-1][1] == 0:
            return None
        return next(bound for bound, count in buckets if count >= share * buckets[-1][1])

    def as_dict(self) -> dict[str, Any]:
        """Give it as values that JSON has.

        Returns:
            The attributes by name; selection times as bounds of two shares.
        """
        document = asdict(self)
        del document["select_buckets"]
        document["decisions"] = [
            {"policy": policy, "reason": reason, "count": count} for (policy, reason), count in self.decisions.items()
        ]
        bounds = {"p50": self.select_seconds(0.5), "p99": self.select_seconds(0.99)}
        document["select_seconds"] = {name: None if bound == float("inf") else bound for name, bound in bounds.items()}
        return document


def read_page(page: bytes) -> Figures | None:
    r"""Read a metrics page.

    Args:
        page: The page in Prometheus or OpenMetrics text format, or any other bytes.

    Returns:
        What it says, None if it shows no router.

    Example:
        >>> figures = read_page(b'cachelb_inflight{dp_rank="",worker="gpu0"} 2.0\n')
        >>> figures.workers[0].worker, figures.workers[0].inflight
        ('gpu0', 2.0)
        >>> read_page(b"up 1\n") is None
        True
    """
    figures = Figures()
    workers: dict[tuple[str, str], WorkerFigures] = {}
    shadows: defaultdict[str, dict[str, float]] = defaultdict(dict)
    peers: dict[str, PeerFigures] = {}
    is_router = False
    for name, labels, value in _samples(page):
        is_router = True
        if "worker" in labels:
            key = (labels["worker"], labels.get("dp_rank", ""))
            _of_worker(workers.setdefault(key, WorkerFigures(*key)), name, labels, value)
        elif name == "select_seconds_bucket":
            bound = _number(labels.get("le", ""))
            if bound is not None:
                figures.select_buckets[bound] = value
        elif name.startswith("state_"):
            figures.sharing = figures.sharing or SharingFigures()
            if "peer" in labels:
                peer = peers.setdefault(labels["peer"], PeerFigures(labels["peer"]))
                _of_peer(peer, name.removeprefix("state_peer_").removesuffix("_total"), value)
            else:
                _of_sharing(figures.sharing, name.removeprefix("state_").removesuffix("_total"), labels, value)
        elif name.startswith("shadow_"):
            shadows[labels.get("policy", "")][name.removeprefix("shadow_").removesuffix("_total")] = value
        else:
            _of_router(figures, name.removesuffix("_total"), labels, value)
    if not is_router:
        return None
    figures.workers, figures.shadows = list(workers.values()), dict(shadows)
    if figures.sharing is not None:
        figures.sharing.peers = list(peers.values())
    return figures


def _samples(page: bytes) -> Iterator[tuple[str, dict[str, str], float]]:
    for name, label_text, number in _SAMPLE.findall(page.decode("utf-8", "replace")):
        value = _number(number)
        # What is infinite is no figure of a router, and nothing that JSON has.
        if value is None or isinf(value) or name.endswith("_created"):
            continue
        labels = {
            label: _ESCAPE.sub(lambda m: _UNESCAPED.get(m[1], m[1]), text) for label, text in _LABEL.findall(label_text)
        }
        yield name, labels, value


def _of_worker(worker: WorkerFigures, name: str, labels: Mapping[str, str], value: float) -> None:
    if name == "worker_state" and value == 1:
        worker.state = labels.get("state")
    elif name == "index_blocks":
        medium = labels.get("medium", "")
        worker.index_blocks[medium] = worker.index_blocks.get(medium, 0) + value
    elif name in _GAUGES:
        setattr(worker, _GAUGES[name], value)


def _of_router(figures: Figures, name: str, labels: Mapping[str, str], value: float) -> None:
    match name:
        case "decisions":
            figures.decisions[labels.get("policy", ""), labels.get("reason", "")] = value
        case "requests":
            figures.requests[labels.get("outcome", "")] = value
        case "funnel_tokens":
            figures.funnel[labels.get("step", "")] = value
        case "evictions":
            figures.evictions[labels.get("cause", "")] = value
        case _ if name in _TOTALS:
            figures.totals[name] = value


def _of_peer(peer: PeerFigures, name: str, value: float) -> None:
    if name in _PEER_GAUGES:
        setattr(peer, _PEER_GAUGES[name], value)


def _of_sharing(sharing: SharingFigures, name: str, labels: Mapping[str, str], value: float) -> None:
    match name:
        case "started":
            sharing.start = ": ".join(filter(None, (labels.get("start"), labels.get("detail"))))
        case "messages":
            sharing.counts[labels.get("direction", "")] = value
        case "entries":
            sharing.counts[labels.get("result", "")] = value
        case _ if name != "peers":
            sharing.counts[name] = value


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return None if isnan(value) else value
