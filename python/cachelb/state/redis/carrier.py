"""The carrier over a Redis server.

Three streams are read with one command, so that their order is the server's: changes, which all routers write;
heartbeats, a short stream of its own, so that they do not push changes out; and an inbox for requested snapshots.
"""

from __future__ import annotations

import os
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from cachelb.state.carrier import Asked, Received, Refused
from cachelb.state.kinds import is_heartbeat
from cachelb.state.redis.answers import NONCE_BYTES, PART, Answers, Questions
from cachelb.state.redis.link import FloodError
from cachelb.state.seal import LIFE_BYTES, BadFrameError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cachelb.state.options import ExchangeSettings
    from cachelb.state.redis.answers import Answer
    from cachelb.state.redis.link import RedisLink, Word
    from cachelb.state.seal import Seal

_NEWS: Final = b"n"
_BEAT: Final = b"b"
_ASK: Final = b"a"
_HELLO: Final = b"h"
_FIELD: Final = b"f"

_BEAT_AFTER_S: Final = 0.2  # changes carry as much as a heartbeat
_AT_ONCE: Final = 64
"""Entries of one read, beginning with one: a server takes seconds to assemble many oversized ones."""

_BLOCK_MS: Final = 1000
_PACE_S: Final = (2.0, 0.02)  # between two reads: in intervals, and at most
_TRIM_EVERY: Final = 16
_TRIM_BYTES: Final = 2048
_MOST_ENTRIES: Final = 10_000
_MOST_BEATS: Final = 64
_MOST_BEAT_BYTES: Final = 256
_ENTRY_BYTES: Final = 64  # what an entry takes on the server beside its frame
_WINDOW: Final = 256 << 10
_BATCH: Final = 64 << 10
_ECHO_S: Final = 2.0
_HELD_S: Final = 1.0
_INBOX_S: Final = 30
_KEEP_S: Final = 3600
_KEEP_AGAIN_S: Final = 60.0


@dataclass(slots=True)
class _Command:
    words: tuple[Word, ...]
    size: int
    news: bytes | None = None
    answer: Answer | None = None
    is_repeated: bool = False


class _Tail:
    """Number of entries of the stream that fit into its bytes on the server."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._sizes: deque[int] = deque()
        self._bytes = 0
        self.entries = _MOST_ENTRIES

    def saw(self, size: int) -> None:
        self._sizes.append(size)
        self._bytes += size
        if self._bytes > self._most_bytes or len(self._sizes) > _MOST_ENTRIES:
            while self._bytes > self._most_bytes or len(self._sizes) > _MOST_ENTRIES:
                self._bytes -= self._sizes.popleft()
            self.entries = max(1, len(self._sizes))


class RedisCarrier:
    """Publishes to a stream and reads what other routers publish.

    All other keys begin with the stream's name. `max_server_bytes` is an approximate limit of the stream.
    """

    def __init__(
        self, link: RedisLink, stream: str, seal: Seal, settings: ExchangeSettings, max_server_bytes: int
    ) -> None:
        self._link = link
        self._stream = stream
        self._seal = seal
        self._most_queued = 2 * settings.max_bytes
        self._pace_s = min(_PACE_S[0] * settings.interval_s, _PACE_S[1])
        self._tail = _Tail(max_server_bytes)
        self._positions: dict[bytes, bytes] = {}
        self._again: list[bytes] = []
        self._is_flooded = False
        self._news, self._beats, self._inbox = (f"{stream}{end}".encode() for end in ("", ":beats", ":to:"))
        self._begin()

    def _begin(self) -> None:
        self._own_inbox = os.urandom(LIFE_BYTES)
        self._queue: deque[_Command] = deque()
        self._sent: deque[_Command] = deque()
        self._queued = self._under_way = 0
        self._questions, self._answers = Questions(), Answers()
        self._held: dict[bytes, tuple[float, Received]] = {}
        self._unheard_s: dict[bytes, float] = {}
        self._news_s = float("-inf")
        self._kept_s: dict[bytes, float] = {}
        self._untrimmed = 0
        self._is_waiting = False
        self._at_once = 1
        self._read_s = 0.0

    # --- the carrier ---

    def open(self) -> None:
        """Connect, find the position to read from, and check that the server accepts writes."""
        under_way = [command for command in self._sent if not command.is_repeated]
        self._again += [command.news for command in (*under_way, *self._queue) if command.news is not None]
        self._begin()
        self._link.open()
        words: tuple[Word, ...] = ("*", _FIELD, self._seal.wrap(_NEWS, _HELLO))
        if self._is_flooded:
            # Oversized entries are trimmed, with all before them; other routers then request snapshots.
            words = ("MAXLEN", 1, *words)
        # The server's time. XINFO has it too, but with the first and the last entry, whatever their length.
        last = cast("bytes", self._link.call("XADD", self._news, *words))
        if self._is_flooded:
            self._is_flooded = False
            self._positions = {}
        # Entries written meanwhile are read, unless the server lost those read before.
        for key in (self._news, self._beats):
            self._positions[key] = min(self._positions.get(key, last), last, key=_parsed)
        again, self._again = self._again, []
        for news in again:
            self._publish(news, is_repeated=True)

    def publish(self, message: bytes) -> None:
        """Append to the stream. Readers detect lost entries by their numbers."""
        now = time.monotonic()
        if not is_heartbeat(message):
            self._news_s = now
            self._publish(message)
            return
        if now >= self._news_s + _BEAT_AFTER_S:
            frame = self._seal.wrap(_BEAT, _BEAT + message)
            self._command("XADD", self._beats, "MAXLEN", "~", _MOST_BEATS, "*", _FIELD, frame)
            self._unheard_s.setdefault(_BEAT, now)
            self._keep(self._beats, now)
        self._keep(self._news, now)

    def ask(self, origin: int, address: str) -> None:
        """Request a router's snapshot through the stream."""
        del origin
        self._ask(bytes.fromhex(address.rpartition("/")[2]), time.monotonic())

    def answer(self, return_to: bytes, messages: Sequence[bytes]) -> None:
        """Send a snapshot to a router that requested it, part by part."""
        inbox, nonce = return_to[:LIFE_BYTES], return_to[LIFE_BYTES:]
        self._answers.begin(self._inbox + inbox.hex().encode(), nonce, messages, time.monotonic())

    def receive(self, timeout_s: float) -> list[Received | Asked | Refused]:
        """Send queued entries, and wait for entries of other routers."""
        now = time.monotonic()
        self._look_back(now)
        self._go_on(now)
        self._flush()
        found: list[Received | Asked | Refused] = []
        if not self._is_waiting and now < self._read_s:
            # Many small messages cost less if they are read together.
            time.sleep(min(timeout_s, self._read_s - now))
            return found
        if not self._is_waiting:
            self._wait(now)
        if self._link.waited(timeout_s):
            self._is_waiting = False
            self._read(self._found(), time.monotonic(), found)
        elif self._held:
            self._let_go(now, found)
        return found

    def close(self) -> None:
        """Close both connections."""
        self._link.close()

    # --- writing ---

    def _publish(self, message: bytes, *, is_repeated: bool = False) -> None:
        self._unheard_s.setdefault(_NEWS, time.monotonic())
        self._append(_NEWS + message, message, is_repeated=is_repeated)

    def _append(self, body: bytes, news: bytes | None = None, *, is_repeated: bool = False) -> None:
        """Add to the stream, and trim it now and then."""
        frame = self._seal.wrap(_NEWS, body)
        # Own entries count before they are read back: in between this router may write as much again.
        self._tail.saw(len(frame) + _ENTRY_BYTES)
        self._untrimmed += 1
        words: tuple[Word, ...] = ("XADD", self._news, "*", _FIELD, frame)
        if self._untrimmed >= _TRIM_EVERY or len(frame) > _TRIM_BYTES:
            self._untrimmed = 0
            words = ("XADD", self._news, "MAXLEN", "~", self._tail.entries, "*", _FIELD, frame)
        self._add(_Command(words, len(frame), news, is_repeated=is_repeated))

    def _command(self, *words: Word, answer: Answer | None = None) -> None:
        self._add(_Command(words, 0, answer=answer))

    def _keep(self, key: bytes, now: float) -> None:
        """Postpone the expiry of a stream, which happens when no peer writes there any more."""
        if now >= self._kept_s.get(key, float("-inf")) + _KEEP_AGAIN_S:
            self._kept_s[key] = now
            self._command("EXPIRE", key, _KEEP_S)

    def _add(self, command: _Command) -> None:
        self._queue.append(command)
        self._queued += command.size
        if self._queued > self._most_queued:
            raise ConnectionError(f"{self._link.shown} does not keep up: {self._queued >> 20} MB wait for it")

    def _flush(self) -> None:
        while self._queue and self._under_way <= _WINDOW:
            batch: list[_Command] = []
            size = 0
            while self._queue and size <= _BATCH:
                command = self._queue.popleft()
                batch.append(command)
                size += command.size
            self._queued -= size
            self._under_way += size
            self._sent.extend(batch)
            self._link.send([command.words for command in batch])

    def _look_back(self, now: float) -> None:
        """Read the results of sent commands."""
        while self._sent and self._link.answered():
            answer = self._link.answer()
            command = self._sent.popleft()
            self._under_way -= command.size
            if command.answer is not None:
                command.answer.unread = cast("int", answer)
                command.answer.is_asking = False
        for since in self._unheard_s.values():
            if now > since + _ECHO_S:
                raise ConnectionError(f"{self._link.shown}: what is written does not come back within {_ECHO_S:g} s")

    def _go_on(self, now: float) -> None:
        """Send more of the snapshots while there is room."""
        for answer in self._answers.due(now):
            if self._queued + self._under_way > _WINDOW:
                return
            frames = answer.take(self._seal, now)
            for frame in frames:
                words = ("XADD", answer.inbox, "*", _FIELD, frame)
                self._add(_Command(words, len(frame)))
            if frames:
                self._command("EXPIRE", answer.inbox, _INBOX_S)
            answer.is_asking = True
            self._command("XLEN", answer.inbox, answer=answer)

    def _ask(self, life: bytes, now: float) -> None:
        nonce = os.urandom(NONCE_BYTES)
        self._questions.ask(life, nonce, now)
        self._append(_ASK + life + self._own_inbox + nonce)

    # --- reading ---

    def _found(self) -> object:
        try:
            return self._link.found()
        except FloodError:
            self._is_flooded = True
            raise

    def _inbox_key(self) -> bytes:
        return self._inbox + self._own_inbox.hex().encode()

    def _wait(self, now: float) -> None:
        # Without an open request the inbox is left out. Once there is one, the request itself, which is among the
        # # changes, ends the pending wait.
        keys = [self._inbox_key()] if self._questions else []
        keys += [self._news, self._beats]
        positions = [self._positions.get(key, b"0-0") for key in keys]
        self._link.wait_for("XREAD", "COUNT", self._at_once, "BLOCK", _BLOCK_MS, "STREAMS", *keys, *positions)
        self._is_waiting = True
        self._read_s = now + self._pace_s

    def _read(self, answer: object, now: float, found: list[Received | Asked | Refused]) -> None:
        """Process a reply of `XREAD`: answers before the changes that follow them, heartbeats last."""
        streams = dict(cast("list[tuple[bytes, list[tuple[bytes, list[bytes]]]]]", answer or []))
        inbox = self._inbox_key()
        for key, channel in ((inbox, inbox), (self._news, _NEWS), (self._beats, _BEAT)):
            for number, fields in streams.get(key, ()):
                self._positions[key] = number
                frame = fields[1]
                if channel == _BEAT and len(frame) > _MOST_BEAT_BYTES:
                    found.append(Refused(f"a heartbeat has no {len(frame)} bytes", self._stream))
                    continue
                try:
                    life, body = self._seal.unwrap(channel, frame)
                except BadFrameError as error:
                    life, body = b"", b""
                    found.append(Refused(str(error), self._stream))
                if life == self._seal.life:
                    self._unheard_s.pop(channel, None)
                    continue
                if key == self._news:
                    self._tail.saw(len(frame) + _ENTRY_BYTES)
                if life:
                    self._receive(life, body, now, found)
        if inbox in streams:
            self._command("XDEL", inbox, *(number for number, _ in streams[inbox]))
        most, self._at_once = self._at_once, min(2 * self._at_once, _AT_ONCE)
        if len(streams.get(self._news, ())) < most:
            self._let_go(now, found, all_of_them=True)
        else:
            self._unheard_s.clear()  # on its way, only late
            self._read_s = now
            self._let_go(now, found)

    def _receive(self, life: bytes, body: bytes, now: float, found: list[Received | Asked | Refused]) -> None:
        kind, data = body[:1], body[1:]
        if kind == PART:
            message = self._questions.part(life, data, now)
            if message is not None:
                self._seal.answered(life)
                found.append(Received(message, self._address(life)))
        elif kind == _ASK:
            if data[:LIFE_BYTES] == self._seal.life and len(data) == 2 * LIFE_BYTES + NONCE_BYTES:
                found.append(Asked(data[LIFE_BYTES:]))
        elif kind in (_NEWS, _BEAT):
            is_fresh = self._seal.is_fresh(life)
            if self._questions.is_stuck(life, now) or (not is_fresh and self._questions.may_ask(life, now)):
                self._ask(life, now)
            if is_fresh and kind == _NEWS:
                found.append(Received(data, self._address(life)))
            elif is_fresh:
                since, _ = self._held.get(life, (now, None))
                self._held[life] = (since, Received(data, self._address(life)))

    def _let_go(self, now: float, found: list[Received | Asked | Refused], *, all_of_them: bool = False) -> None:
        """Pass heartbeats on once all changes before them are read, or after a while."""
        for life, (since, beat) in list(self._held.items()):
            if all_of_them or now > since + _HELD_S:
                del self._held[life]
                found.append(beat)

    def _address(self, life: bytes) -> str:
        return f"{self._stream}/{life.hex()}"


def _parsed(number: bytes) -> tuple[int, int]:
    """Read the id of an entry."""
    milliseconds, _, sequence = number.partition(b"-")
    return int(milliseconds), int(sequence)
