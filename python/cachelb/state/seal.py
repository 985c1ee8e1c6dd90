"""Sealed frames, for a log that others can write to.

A frame names the life of the router that wrote it. It is encrypted and authenticated (AES-256-GCM, a key per life
derived from the secret, a counter as nonce), bound to its channel, and refused if its counter is not above the last.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    from cachelb.common.secret import Secret

LIFE_BYTES: Final = 8
_SEALED: Final = b"\x02"
_COUNTER_BYTES: Final = 8
_TAG_BYTES: Final = 16
_HEAD_BYTES: Final = 1 + LIFE_BYTES
_MOST_LIVES: Final = 4096


class BadFrameError(Exception):
    """A refused frame; the text is the reason."""


@dataclass(slots=True)
class _Life:
    cipher: AESGCM
    fresh: bool = False
    counters: dict[bytes, int] = field(default_factory=dict)


class Seal:
    """Frames that only holders of the secret can read and make.

    Frames are made with the first secret; those made with any are opened. Frames of one stream are invalid in another.

    Example:
        >>> from cachelb.common.secret import Secret
        >>> old, new = Secret("the text of last year"), Secret("the text of this year")
        >>> ours, theirs = Seal([old], "cachelb"), Seal([new, old], "cachelb")
        >>> frame = ours.wrap(b"news", b"hello")
        >>> theirs.unwrap(b"news", frame) == (ours.life, b"hello")
        True
        >>> b"hello" in frame
        False
    """

    def __init__(self, secrets: Sequence[Secret], stream: str) -> None:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self.life = os.urandom(LIFE_BYTES)
        self._invalid = InvalidTag
        self._make = AESGCM
        self._keys = [secret.key(f"frames of {stream}") for secret in secrets]
        self._own = self._ciphers(self.life)[0]
        self._counter = 0
        self._lives: OrderedDict[bytes, _Life] = OrderedDict()

    def _ciphers(self, life: bytes) -> list[AESGCM]:
        """Return the ciphers of a life's frames, by secret."""
        return [self._make(hashlib.blake2b(life, key=key, digest_size=32).digest()) for key in self._keys]

    def wrap(self, channel: bytes, body: bytes) -> bytes:
        """Make a frame."""
        self._counter += 1
        counter = self._counter.to_bytes(_COUNTER_BYTES, "big")
        return _SEALED + self.life + counter + self._own.encrypt(counter.rjust(12, b"\0"), body, channel)

    def unwrap(self, channel: bytes, frame: bytes) -> tuple[bytes, bytes]:
        """Open a frame."""
        if frame[:1] != _SEALED or len(frame) < _HEAD_BYTES + _COUNTER_BYTES + _TAG_BYTES:
            raise BadFrameError("it does not begin like a frame of cachelb")
        life, counter = frame[1:_HEAD_BYTES], frame[_HEAD_BYTES : _HEAD_BYTES + _COUNTER_BYTES]
        known = self._lives.get(life)
        ciphers = [self._own] if life == self.life else self._ciphers(life) if known is None else [known.cipher]
        for cipher in ciphers:
            try:
                body = cipher.decrypt(counter.rjust(12, b"\0"), frame[_HEAD_BYTES + _COUNTER_BYTES :], channel)
                break
            except self._invalid:
                continue
        else:
            raise BadFrameError("its seal is wrong: another secret, another channel, or changed on its way")
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
        """Return whether a life has answered this router."""
        known = self._lives.get(life)
        return known is not None and known.fresh

    def answered(self, life: bytes) -> None:
        """Record that a life answered a fresh request."""
        if life in self._lives:
            self._lives[life].fresh = True
