"""The message log of routers in a Ray cluster, run by the actors of `RayState` and `Sharing`.

One call per router and interval stores its messages and returns the others'. The newest messages are kept, up to a
number of bytes. A router that comes too late for some requests a snapshot of their sender, through the log too.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

_REPLY_BYTES = 4 << 20
_GONE_S = 60.0


class News(NamedTuple):
    """The messages of one router."""

    published: Sequence[bytes] = ()  # to all
    asks: Sequence[str] = ()  # routers asked for a snapshot
    answers: Sequence[tuple[str, Sequence[bytes]]] = ()  # snapshots, by the router that asked


class Reply(NamedTuple):
    """The messages for one router."""

    life: str  # id of the log's life; another one means that it restarted
    cursor: int  # for the next call
    received: list[tuple[str, bytes]]  # sender and message, oldest first
    asked: list[str]  # routers that ask for a snapshot
    answers: list[tuple[str, bytes]]  # sender and message of requested snapshots
    more: bool  # there is more to fetch now


@dataclass(slots=True)
class _Box:
    seen_s: float
    asked: dict[str, None] = field(default_factory=dict)
    answers: deque[tuple[str, bytes]] = field(default_factory=deque)


class MessageLog:
    """The newest messages of all routers, and a box for each router.

    Example:
        >>> log = MessageLog()
        >>> log.trade("one", "", 0, News([b"hello"])).received
        []
        >>> log.trade("two", "", 0, News()).received
        [('one', b'hello')]
    """

    def __init__(self, max_bytes: int = 16 << 20, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin empty. `max_bytes` limits messages, and as many bytes of answers."""
        self._max_bytes = max_bytes
        self._clock = clock
        self._life = secrets.token_hex(8)
        self._log: deque[tuple[str, bytes]] = deque()
        self._first = 0
        self._bytes = self._answer_bytes = 0
        self._boxes: dict[str, _Box] = {}

    def trade(self, who: str, life: str, cursor: int, news: News) -> Reply:
        """Store a router's messages and return the others', up to some megabytes.

        `cursor` is that of its last call, 0 at first, in the life `life`.
        """
        now = self._clock()
        self._forget(now)
        box = self._boxes.setdefault(who, _Box(now))
        box.seen_s = now
        published, asks, answers = news
        for message in published:
            self._log.append((who, message))
            self._bytes += len(message)
        while self._bytes > self._max_bytes:
            self._bytes -= len(self._log.popleft()[1])
            self._first += 1
        for other in asks:
            if other in self._boxes:
                self._boxes[other].asked[who] = None
        for other, messages in answers:
            self._answer(who, other, messages)
        cursor, received, room = self._received(who, cursor if life == self._life else 0)
        answered: list[tuple[str, bytes]] = []
        while box.answers and room > 0:
            answered.append(box.answers.popleft())
            self._answer_bytes -= len(answered[-1][1])
            room -= len(answered[-1][1])
        asked, box.asked = list(box.asked), {}
        more = bool(box.answers) or cursor < self._first + len(self._log)
        return Reply(self._life, cursor, received, asked, answered, more)

    def stats(self) -> dict[str, int]:
        """Count routers that called in the last minute, messages and answers kept, and their bytes."""
        return {
            "routers": len(self._boxes),
            "messages": len(self._log),
            "bytes": self._bytes,
            "answers": sum(len(box.answers) for box in self._boxes.values()),
            "answer_bytes": self._answer_bytes,
        }

    def _received(self, who: str, cursor: int) -> tuple[int, list[tuple[str, bytes]], int]:
        """Return the others' messages from a number on, the next number, and the room that is left."""
        at = max(0, cursor - self._first)
        received: list[tuple[str, bytes]] = []
        room = _REPLY_BYTES
        # From the end, since that is where most begin.
        newer = list(islice(reversed(self._log), len(self._log) - at))
        while newer and room > 0:
            sender, message = newer.pop()
            at += 1
            if sender != who:
                received.append((sender, message))
                room -= len(message)
        return self._first + at, received, room

    def _answer(self, who: str, other: str, messages: Sequence[bytes]) -> None:
        """Keep the whole answer or none of it: a router without an answer asks again."""
        size = sum(map(len, messages))
        box = self._boxes.get(other)
        if box is not None and self._answer_bytes + size <= self._max_bytes:
            box.answers.extend((who, message) for message in messages)
            self._answer_bytes += size

    def _forget(self, now: float) -> None:
        for who in [who for who, box in self._boxes.items() if box.seen_s < now - _GONE_S]:
            self._answer_bytes -= sum(len(message) for _, message in self._boxes.pop(who).answers)
