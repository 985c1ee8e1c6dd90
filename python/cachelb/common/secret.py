"""The secret of a fleet, and the keys derived from it.

Namespaces, block hashes and the messages of sharing are keyed with it. scrypt makes guessing slow, blake2b makes a key
per purpose.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

VARIABLE: Final = "CACHELB_SECRET"
"""The environment variable with the secret of routers without one."""

_LEAST: Final = 16
_MOST: Final = 8
_MAKE: Final = 'python -c "import secrets; print(secrets.token_urlsafe())" makes one'


class Secret:
    """Keys derived from one secret; the text itself is not kept.

    Example:
        >>> one, same = Secret("known to all gateways"), Secret("known to all gateways")
        >>> one.key("frames") == same.key("frames"), one.key("frames") == one.key("mesh"), one
        (True, False, Secret(...))
    """

    __slots__ = ("_root", "hash_seed", "namespace_key")

    def __init__(self, text: str) -> None:
        self._root = _root(text)
        self.namespace_key = self.key("namespaces", 16)
        self.hash_seed = int.from_bytes(self.key("block hashes", 8))

    def __repr__(self) -> str:
        return "Secret(...)"

    def key(self, purpose: str, size: int = 32) -> bytes:
        """Derive a key of up to 64 bytes; keys of different purposes are unrelated."""
        return hashlib.blake2b(purpose.encode(), key=self._root, digest_size=size).digest()


@lru_cache(maxsize=_MOST)
def _root(text: str) -> bytes:
    return hashlib.scrypt(text.encode(), salt=b"cachelb", n=1 << 14, r=8, p=1, dklen=32)


def read(secret: object) -> tuple[Secret, ...]:
    """Read the `secret` of a router, or that of the environment if it is None; empty if there is neither.

    A router signs with the first and accepts all: the new secret, and those before it.

    Example:
        >>> read(["since today: Xn4gTz8qP", "before today: k0wQh3rV"])
        (Secret(...), Secret(...))
        >>> read("short")
        Traceback (most recent call last):
        ValueError: secret must have 16 characters or more, this one has 5: python -c "import secrets; ...
    """
    if secret is None:
        if not (found := os.environ.get(VARIABLE)):
            return ()
        secret = from_text(found)
    listed = [secret] if isinstance(secret, str) else secret
    if isinstance(listed, bytes) or not isinstance(listed, Sequence):
        raise TypeError(f"secret must be text, or a list of texts such as [new, old], not {type(secret).__name__}")
    if not 1 <= len(listed) <= _MOST:
        raise ValueError(f"secret must be one text, or a list of 1 to {_MOST}, not of {len(listed)}")
    return tuple(map(_one, listed))


def one(secret: object) -> Secret:
    """Read the `secret` of a function that hashes; of several, the first counts."""
    return read([secret] if isinstance(secret, str) else secret)[0]


def _one(text: object) -> Secret:
    if not isinstance(text, str):
        raise TypeError(f"a secret must be text, not {type(text).__name__}")
    if len(text) < _LEAST:
        raise ValueError(f"secret must have {_LEAST} characters or more, this one has {len(text)}: {_MAKE}")
    return Secret(text)


def from_text(value: str) -> object:
    """Read a secret written as text: itself, or a JSON list."""
    if value.startswith("["):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value
