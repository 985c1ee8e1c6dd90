"""Snapshots on their way to the peers that requested them, no faster than they are read."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cachelb.state.seal import Seal

NONCE_BYTES: Final = 8
_NUMBER_BYTES: Final = 4
PART: Final = b"p"
_PARTS_AT_ONCE: Final = 32
_MOST_UNREAD: Final = 128
_POLL_S: Final = 0.02
_GIVE_UP_S: Final = 10.0
_MOST_ANSWERS: Final = 64
_MOST_BYTES: Final = 256 << 20
_MOST_QUESTIONS: Final = 4096
_ASK_AGAIN_S: Final = 1.0


@dataclass(slots=True)
class Answer:
    """A snapshot that a peer requested."""

    inbox: bytes  # stream that the peer reads
    nonce: bytes
    parts: deque[bytes]
    moved_s: float
    polled_s: float = 0.0
    number: int = 0
    unread: int = 0  # latest known number of entries unread there
    is_asking: bool = False  # the server was asked for that number and has not answered

    def due(self, now: float) -> bool:
        """Return whether the next parts may be sent, or the number of unread entries requested again."""
        return not self.is_asking and (self.unread <= _MOST_UNREAD or now >= self.polled_s + _POLL_S)

    def take(self, seal: Seal, now: float) -> list[bytes]:
        """Return the next parts as frames: few, and none while many are unread."""
        self.polled_s = now
        if self.unread > _MOST_UNREAD:
            return []
        self.moved_s = now
        frames = []
        for _ in range(min(_PARTS_AT_ONCE, len(self.parts))):
            message = self.parts.popleft()
            end = b"\x00" if self.parts else b"\x01"
            number = self.number.to_bytes(_NUMBER_BYTES, "big")
            frames.append(seal.wrap(self.inbox, PART + self.nonce + number + end + message))
            self.number += 1
        return frames


class Answers:
    """Snapshots in progress, one per inbox: at most 64, and 256 MB; a peer without an answer asks again."""

    def __init__(self) -> None:
        """Begin empty."""
        self._open: dict[bytes, Answer] = {}

    def begin(self, inbox: bytes, nonce: bytes, messages: Sequence[bytes], now: float) -> None:
        """Begin a snapshot, which replaces the previous one to the same inbox."""
        self._open.pop(inbox, None)
        if len(self._open) >= _MOST_ANSWERS:
            del self._open[next(iter(self._open))]
        answer = Answer(inbox, nonce, deque(messages), now)
        waiting = sum(len(part) for each in (answer, *self._open.values()) for part in each.parts)
        if not self._open or waiting <= _MOST_BYTES:
            self._open[inbox] = answer

    def due(self, now: float) -> list[Answer]:
        """List those that can continue; drop those that are sent, or that no peer reads."""
        for inbox, answer in list(self._open.items()):
            if not answer.parts or now > answer.moved_s + _GIVE_UP_S:
                del self._open[inbox]
        return [answer for answer in self._open.values() if answer.due(now)]


@dataclass(slots=True)
class _Question:
    nonce: bytes
    touched_s: float
    next: int = 0


@dataclass(slots=True)
class Questions:
    """Snapshots that this router requested, and their progress; one request per life of a peer."""

    _open: dict[bytes, _Question] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._open)

    def ask(self, life: bytes, nonce: bytes, now: float) -> None:
        """Record a request to a life, which voids its earlier answer."""
        self._open.pop(life, None)
        if len(self._open) >= _MOST_QUESTIONS:
            del self._open[next(iter(self._open))]
        self._open[life] = _Question(nonce, now)

    def may_ask(self, life: bytes, now: float) -> bool:
        """Return whether a life can be asked: not yet, or long enough ago."""
        question = self._open.get(life)
        return question is None or now >= question.touched_s + _ASK_AGAIN_S

    def is_stuck(self, life: bytes, now: float) -> bool:
        """Return whether the answer of a life broke off."""
        question = self._open.get(life)
        return question is not None and question.next != 0 and now >= question.touched_s + _ASK_AGAIN_S

    def part(self, life: bytes, body: bytes, now: float) -> bytes | None:
        """Return the message of an answer's part, None if it was not requested or an earlier part is missing."""
        question = self._open.get(life)
        nonce, rest = body[:NONCE_BYTES], body[NONCE_BYTES:]
        if question is None or question.nonce != nonce or len(rest) <= _NUMBER_BYTES:
            return None
        number, end = int.from_bytes(rest[:_NUMBER_BYTES], "big"), rest[_NUMBER_BYTES]
        if number != question.next:
            question.next = -1
            return None
        question.next += 1
        question.touched_s = now
        if end:
            del self._open[life]
        return rest[_NUMBER_BYTES + 1 :]
