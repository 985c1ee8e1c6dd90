"""Frames: what a router puts into a log that others can write to as well.

A frame names the life of the router that wrote it. With a secret it is encrypted and authenticated (AES-256-GCM, a key
per life, a counter as nonce), bound to the channel it was written to, and refused if its counter is not above the last.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

LIFE_BYTES: Final = 8
_PLAIN: Final = b"\x01"
_SEALED: Final = b"\x02"
_COUNTER_BYTES: Final = 8
_TAG_BYTES: Final = 16
_HEAD_BYTES: Final = 1 + LIFE_BYTES
_MOST_LIVES: Final = 4096


class BadFrameError(Exception):
    """A frame that is refused; the text says why."""


class Seal(Protocol):
    """Makes frames and opens those of others."""

    life: bytes

    def wrap(self, channel: bytes, body: bytes) -> bytes:
        """Make a frame for a channel."""
        ...

    def unwrap(self, channel: bytes, frame: bytes) -> tuple[bytes, bytes]:
        """Open a frame. Returns whose it is and what it says; raises `BadFrameError`."""
        ...

    def is_fresh(self, life: bytes) -> bool:
        """Say whether a life is known to be of now: its frames may be no recording of an earlier one."""
        ...

    def answered(self, life: bytes) -> None:
        """Note that a life answered a question that nobody asked before."""
        ...


class PlainSeal:
    """Frames for those who have no secret: everybody can read and write them."""

    def __init__(self) -> None:
        """Begin a life."""
        self.life = os.urandom(LIFE_BYTES)
        self._head = _PLAIN + self.life

    def wrap(self, channel: bytes, body: bytes) -> bytes:
        """Make a frame."""
        del channel
        return self._head + body

    def unwrap(self, channel: bytes, frame: bytes) -> tuple[bytes, bytes]:
        """Open a frame."""
        del channel
        if frame[:1] == _SEALED:
            raise BadFrameError("it is sealed, and this router has no secret: give all routers the same")
        if frame[:1] != _PLAIN or len(frame) < _HEAD_BYTES:
            raise BadFrameError("it does not begin like a frame of cachelb")
        return frame[1:_HEAD_BYTES], frame[_HEAD_BYTES:]

    def is_fresh(self, life: bytes) -> bool:
        """Nothing is known."""
        del life
        return True

    def answered(self, life: bytes) -> None:
        """Nothing to note."""


@dataclass(slots=True)
class _Life:
    cipher: AESGCM
    fresh: bool = False
    counters: dict[bytes, int] = field(default_factory=dict)


class SecretSeal:
    """Frames that only those who know the secret can read and make.

    Args:
        secret: Shared by all.
        stream: Its name; frames of one stream are nothing in another.
    """

    def __init__(self, secret: str, stream: str) -> None:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self.life = os.urandom(LIFE_BYTES)
        self._invalid = InvalidTag
        self._make = AESGCM
        salt = hashlib.blake2b(stream.encode(), digest_size=16, person=b"cachelb log").digest()
        self._key = hashlib.scrypt(secret.encode(), salt=salt, n=1 << 14, r=8, p=1, dklen=32)
        self._own = self._cipher(self.life)
        self._counter = 0
        self._lives: OrderedDict[bytes, _Life] = OrderedDict()

    def _cipher(self, life: bytes) -> AESGCM:
        return self._make(hashlib.blake2b(life, key=self._key, digest_size=32).digest())

    def wrap(self, channel: bytes, body: bytes) -> bytes:
        """Make a frame."""
        self._counter += 1
        counter = self._counter.to_bytes(_COUNTER_BYTES, "big")
        return _SEALED + self.life + counter + self._own.encrypt(counter.rjust(12, b"\0"), body, channel)

    def unwrap(self, channel: bytes, frame: bytes) -> tuple[bytes, bytes]:
        """Open a frame."""
        if frame[:1] == _PLAIN:
            raise BadFrameError("it is not sealed: give all routers the same secret")
        if frame[:1] != _SEALED or len(frame) < _HEAD_BYTES + _COUNTER_BYTES + _TAG_BYTES:
            raise BadFrameError("it does not begin like a frame of cachelb")
        life, counter = frame[1:_HEAD_BYTES], frame[_HEAD_BYTES : _HEAD_BYTES + _COUNTER_BYTES]
        known = self._lives.get(life)
        cipher = self._own if life == self.life else self._cipher(life) if known is None else known.cipher
        try:
            body = cipher.decrypt(counter.rjust(12, b"\0"), frame[_HEAD_BYTES + _COUNTER_BYTES :], channel)
        except self._invalid:
            raise BadFrameError("its seal is wrong: another secret, another channel, or changed on its way") from None
        if life == self.life:
            return life, body
        if known is None:
            known = self._lives[life] = _Life(cipher)
            if len(self._lives) > _MOST_LIVES:
                self._lives.popitem(last=False)
        self._lives.move_to_end(life)
        number = int.from_bytes(counter, "big")
        if number <= known.counters.get(channel, 0):
            raise BadFrameError("it was written before: a recording is played again")
        known.counters[channel] = number
        return life, body

    def is_fresh(self, life: bytes) -> bool:
        """Say whether a life answered since this router runs."""
        known = self._lives.get(life)
        return known is not None and known.fresh

    def answered(self, life: bytes) -> None:
        """Note that a life answered a question that nobody asked before."""
        if life in self._lives:
            self._lives[life].fresh = True


def seal(secret: str | None, stream: str) -> Seal:
    """Choose how frames are made.

    Args:
        secret: What all routers share, None for nothing.
        stream: Name of the log.

    Returns:
        Makes and opens frames, in a life of its own.

    Example:
        >>> ours, theirs = seal("of the fleet", "cachelb"), seal("of the fleet", "cachelb")
        >>> frame = ours.wrap(b"news", b"hello")
        >>> theirs.unwrap(b"news", frame) == (ours.life, b"hello")
        True
        >>> b"hello" in frame
        False
    """
    return PlainSeal() if secret is None else SecretSeal(secret, stream)
