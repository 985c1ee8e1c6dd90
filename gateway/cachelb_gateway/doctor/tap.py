"""Listening in on the events of one worker on their way from the source to the router."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cachelb import _core
from cachelb.sources.http import address_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Self

    from cachelb.events import KvSink


@dataclass(frozen=True, slots=True)
class Announced:
    """Blocks of a probe that an engine published as stored."""

    rank: int | None  # data-parallel, None for a worker without ranks
    probe: int
    start: int  # position of the first token
    tokens: int
    block_size: int  # of the event
    parent: object  # name of the block before, None at the start of a prompt
    names: Sequence[object]  # the engine's


@dataclass(slots=True)
class StreamNotes:
    """Observations on a stream."""

    connected: bool = False
    replay_from: int | None = None  # first number requested, None before a request
    replayed: int = 0  # batches of the first replay
    first_replayed: int | None = None  # number of the first of them
    last_replayed: int | None = None
    replay_complete: bool | None = None  # None until the first replay ended
    first: int | None = None  # number of the first live message
    last: int | None = None
    live: int = 0
    unnumbered: int = 0  # live messages without a number
    lost: int = 0  # missing between live ones
    went_back: int = 0  # times the numbers went back


@dataclass(slots=True)
class Received:
    """The content of messages, replayed ones included."""

    events: Counter[str] = field(default_factory=Counter)  # by type
    undecodable: Counter[str] = field(default_factory=Counter)  # by reason
    media: Counter[str] = field(default_factory=Counter)  # of stored blocks
    block_sizes: Counter[int] = field(default_factory=Counter)  # of stored blocks that cover the whole prefix


class Tap:
    """Stands between a `ZmqSource` and a router: passes everything on, and keeps notes."""

    def __init__(self, router: KvSink) -> None:
        self._router = router
        self._changed = threading.Condition()
        self._probes: list[list[int]] = []
        self.streams: dict[int | None, StreamNotes] = {}
        self.received = Received()
        self.announced: list[Announced] = []

    def watch(self, tokens: list[int]) -> int:
        """Look for the blocks of a prompt from now on; return the number of the probe."""
        with self._changed:
            self._probes.append(tokens)
            return len(self._probes) - 1

    def covered(self, probe: int, rank: int | None) -> int:
        """Return how many leading tokens of a probe a rank announced, with it or with an earlier one."""
        held = [
            (found.start, min(found.start + found.tokens, self._shared(found.probe, probe)))
            for found in self.announced
            if found.rank == rank  # ranks get equal prompts where a seed is set
        ]
        end = 0
        while (further := max((stop for start, stop in held if start <= end), default=0)) > end:
            end = further
        return end

    def wait_for(self, condition: Callable[[], object], timeout_s: float) -> bool:
        """Wait until a condition on the notes holds; it is called after every change."""
        with self._changed:
            return bool(self._changed.wait_for(condition, timeout_s))

    def shares(self, found: Announced, before: Announced) -> bool:
        """Whether the prompts of two announcements are the same up to where the first begins."""
        return self._shared(found.probe, before.probe) >= found.start

    def _shared(self, one: int, other: int) -> int:
        """Return how many leading tokens two probes have in common."""
        first, second = self._probes[one], self._probes[other]
        pairs = enumerate(zip(first, second, strict=False))
        return next((at for at, (own, their) in pairs if own != their), min(len(first), len(second)))

    # --- the sink ---

    @property
    def event_sink(self) -> Self:
        """The tap itself, which passes all on."""
        return self

    def ranks(self) -> list[tuple[str, int]]:
        """Return the workers and their ranks."""
        return self._router.event_sink.ranks()

    def address_of(self, name: str) -> str:
        """Return the address of a worker by its key."""
        return address_of(self._router, name)

    def connected(self, key: str, dp_rank: int | None, replayable: bool) -> int | None:  # noqa: FBT001 - the seam
        """Begin or continue a stream."""
        start = self._router.event_sink.connected(key, dp_rank, replayable)
        with self._noting(dp_rank) as notes:
            notes.connected = True
            if notes.replay_from is None:
                notes.replay_from = start
        return start

    def live(self, key: str, dp_rank: int | None, seq: int | None, payload: bytes) -> tuple[int, int | None]:
        """Process a live message."""
        done = self._router.event_sink.live(key, dp_rank, seq, payload)
        with self._noting(dp_rank) as notes:
            notes.live += 1
            if seq is None:
                notes.unnumbered += 1
            else:
                _count(notes, seq)
            self._read(dp_rank, payload)
        return done

    def replayed(self, key: str, dp_rank: int | None, seq: int, payload: bytes) -> int:
        """Process a batch of a replay."""
        applied = self._router.event_sink.replayed(key, dp_rank, seq, payload)
        with self._noting(dp_rank) as notes:
            if notes.replay_complete is None:  # later ones close gaps, which the live messages show
                notes.replayed += 1
                notes.last_replayed = seq
                if notes.first_replayed is None:
                    notes.first_replayed = seq
            self._read(dp_rank, payload)
        return applied

    def replay_ended(self, key: str, dp_rank: int | None, complete: bool) -> int | None:  # noqa: FBT001 - the seam
        """Process the end of a replay."""
        start = self._router.event_sink.replay_ended(key, dp_rank, complete)
        with self._noting(dp_rank) as notes:
            if notes.replay_complete is None:
                notes.replay_complete = complete
        return start

    def disconnected(self, key: str, dp_rank: int | None) -> None:
        """Process the interruption of a stream."""
        self._router.event_sink.disconnected(key, dp_rank)

    # --- notes ---

    @contextmanager
    def _noting(self, dp_rank: int | None) -> Iterator[StreamNotes]:
        """Change the notes on a stream, of which waiting threads are notified."""
        with self._changed:
            yield self.streams.setdefault(dp_rank, StreamNotes())
            self._changed.notify_all()

    def _read(self, rank: int | None, payload: bytes) -> None:
        """Take a message apart."""
        try:
            _, _, events = _core.decode_kv_events(payload)
        except ValueError as error:
            self.received.undecodable[str(error)] += 1
            return
        for event in events:
            self.received.events[event["type"]] += event.get("count", 1)
            if event["type"] == "BlockStored":
                self._read_store(rank, event)

    def _read_store(self, rank: int | None, event: dict[str, Any]) -> None:
        self.received.media[event["medium"] or "gpu"] += 1
        ids, size = event["token_ids"], event["block_size"]
        if not ids or not size or event["attention"] == "partial":
            return
        self.received.block_sizes[size] += 1
        for probe, tokens in enumerate(self._probes):
            start = next((at for at in range(0, len(tokens), size) if tokens[at : at + len(ids)] == ids), None)
            if start is not None:
                names = event["block_hashes"]
                self.announced.append(Announced(rank, probe, start, len(ids), size, event["parent_block_hash"], names))
                return


def _count(notes: StreamNotes, seq: int) -> None:
    """Compare the number of a live message with the one before."""
    if notes.first is None:
        notes.first = seq
    if notes.last is not None:
        if seq <= notes.last:
            notes.went_back += 1
        else:
            notes.lost += seq - notes.last - 1
    notes.last = seq
