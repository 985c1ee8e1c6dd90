"""A router as event streams see it: keeps its calls, and orders messages in the simplest way."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import msgpack  # type: ignore[import-untyped]

import cachelb

DEADLINE_S = 120.0


@dataclass
class Heard:
    """Calls for one stream.

    Attributes:
        applied: First hashes of the events of every batch that counts, in order; "clear" where the stream began anew.
        told: Calls except those for messages, in order.
        asked: First numbers of the requested replays.
        duplicates: Messages received before.
        unreadable: Payloads that are no batch.
        connected: Whether it is connected.
        last: Number of the last batch applied.
        waiting: Live messages that wait for the end of a replay; None while there is none.
        answered: Whether the replay brought anything.
    """

    applied: list[object] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    duplicates: int = 0
    unreadable: int = 0
    connected: bool = False
    last: int = -1
    waiting: dict[int, bytes] | None = None
    answered: bool = False
    payloads: dict[int, bytes] = field(default_factory=dict)


class RecordingSink:
    """Keeps its calls; the workers are those of `workers`, with their ranks."""

    def __init__(self, workers: Mapping[str, int]) -> None:
        self.workers = dict(workers)
        self.streams: dict[tuple[str, int | None], Heard] = {}
        self.threads: set[int] = set()
        self._changed = threading.Condition()

    def of(self, key: str, rank: int | None = None) -> Heard:
        return self.streams.setdefault((key, rank), Heard())

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Wait until a condition on the calls holds."""
        with self._changed:
            assert self._changed.wait_for(condition, DEADLINE_S), self.streams

    def wait_applied(self, applied: list[object], key: str, rank: int | None = None) -> None:
        """Wait until exactly these batches were applied."""
        self.wait_for(lambda: self.of(key, rank).applied == applied)

    # --- the seam ---

    @property
    def event_sink(self) -> Self:
        return self

    def address_of(self, name: str) -> str:
        return name

    def ranks(self) -> list[tuple[str, int]]:
        return list(self.workers.items())

    def connected(self, key: str, dp_rank: int | None, replayable: bool) -> int | None:
        with self._heard(key, dp_rank, f"connected {replayable}") as heard:
            heard.connected = True
            return self._ask(heard) if replayable else None

    def live(self, key: str, dp_rank: int | None, seq: int | None, payload: bytes) -> tuple[int, int | None]:
        with self._heard(key, dp_rank) as heard:
            if seq is None:
                return self._apply(heard, None, payload), None
            if heard.waiting is not None:
                heard.waiting[seq] = payload
                return 0, None
            if seq == heard.last + 1:
                return self._apply(heard, seq, payload), None
            if seq > heard.last:
                start = self._ask(heard)
                heard.waiting = {seq: payload}
                return 0, start
            if heard.payloads.get(seq) == payload:
                heard.duplicates += 1
                return 0, None
            self._clear(heard)
            return (self._apply(heard, seq, payload), None) if seq == 0 else (0, self._ask(heard))

    def replayed(self, key: str, dp_rank: int | None, seq: int, payload: bytes) -> int:
        with self._heard(key, dp_rank) as heard:
            heard.answered = True
            if seq <= heard.last:
                heard.duplicates += 1
                return 0
            if seq > heard.last + 1:
                self._clear(heard)
            return self._apply(heard, seq, payload)

    def replay_ended(self, key: str, dp_rank: int | None, complete: bool) -> int | None:
        with self._heard(key, dp_rank, f"ended {complete}") as heard:
            waiting, heard.waiting = heard.waiting or {}, None
            if complete and not heard.answered and heard.last >= 0:
                self._clear(heard)
                start = self._ask(heard)
                heard.waiting = waiting
                return start
            for seq, payload in sorted(waiting.items()):
                if seq <= heard.last:
                    heard.duplicates += 1
                    continue
                if seq > heard.last + 1:
                    self._clear(heard)
                self._apply(heard, seq, payload)
            return None

    def disconnected(self, key: str, dp_rank: int | None) -> None:
        with self._heard(key, dp_rank, "disconnected") as heard:
            heard.connected = False
            heard.waiting = None

    # --- inside ---

    @contextlib.contextmanager
    def _heard(self, key: str, rank: int | None, told: str | None = None) -> Iterator[Heard]:
        """One call of the seam: refuses unknown workers, and notifies waiting tests at its end."""
        with self._changed:
            self.threads.add(threading.get_ident())
            heard = self.of(key, rank)
            heard.told += [] if told is None else [told]
            if key not in self.workers:
                raise cachelb.UnknownWorkerError(f"no worker {key!r}")
            yield heard
            self._changed.notify_all()

    def _ask(self, heard: Heard) -> int:
        """Ask from the last batch applied on: an engine that does not have it is a new one."""
        heard.waiting = {}
        heard.answered = False
        heard.asked.append(max(0, heard.last))
        return heard.asked[-1]

    @staticmethod
    def _clear(heard: Heard) -> None:
        heard.applied.append("clear")
        heard.last = -1
        heard.payloads.clear()

    @staticmethod
    def _apply(heard: Heard, seq: int | None, payload: bytes) -> int:
        if seq is not None:
            heard.last = seq
            heard.payloads[seq] = payload
        try:
            events = msgpack.unpackb(payload)[1]
            heard.applied += [_first_hash(event) for event in events]
        except (ValueError, TypeError, IndexError, msgpack.UnpackException):
            heard.unreadable += 1
            return 0
        return len(events)


def _first_hash(event: Any) -> object:
    """Return what is asserted on; a clear has no hash."""
    hashes = event[1:2] if isinstance(event, list) else [event.get("block_hashes")]
    return hashes[0][0] if hashes and hashes[0] else "cleared"
