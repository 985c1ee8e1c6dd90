"""Placements of prompts, shared between the routers of several processes.

The shared actor runs `PlacementStore`. It keeps the newest placements up to a number of bytes, so that a new router
gets the state of the others. A placement that continues an older one of the same replica takes its
place: of a conversation, the last turn stays.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cachelb._core import hash_blocks, hash_text

_REPLY_BYTES = 4 << 20
_CHUNK_BYTES = 256
_CHUNK_TOKENS = 64
_OVERHEAD = 300  # bytes of an entry beside its prompt, measured


class Placement(NamedTuple):
    """A request sent to a replica: its body, or token ids and what is beside them in the body, adapter and session.

    Never shown: it holds the prompt itself.
    """

    worker: str
    body: bytes = b""
    path: str = ""
    tokens: bytes = b""
    lora: str | None = None
    session: str | None = None

    @property
    def size(self) -> int:
        """About the bytes it takes."""
        return len(self.body) + len(self.tokens) + _OVERHEAD

    def arguments(self) -> dict[str, Any]:
        """Return it as arguments of `Router.select_worker`."""
        return {name: value for name in self._fields[1:] if (value := getattr(self, name))}

    def __repr__(self) -> str:
        return f"Placement(worker={self.worker!r}, ...)"


class Reply(NamedTuple):
    """The answer of the store."""

    epoch: str  # id of the store's life; after another one, `since` begins at 0 again
    cursor: int  # for the next call
    placements: list[Placement]  # of the other routers, oldest first
    more: bool  # there is more to fetch now


@dataclass(slots=True)
class _Entry:
    number: int
    origin: str
    placement: Placement


class PlacementStore:
    """The newest placements of all routers of a deployment.

    Example:
        >>> store = PlacementStore()
        >>> reply = store.exchange("router-1", 0, [Placement("replica-a", b'{"prompt": "Once"}')])
        >>> [placement.worker for placement in store.exchange("router-2", 0, []).placements]
        ['replica-a']
    """

    def __init__(self, max_bytes: int = 64 << 20) -> None:
        """Begin empty. `max_bytes` of placements is an approximate limit."""
        self._max_bytes = max_bytes
        self._bytes = 0
        self._numbered = 0
        self._epoch = secrets.token_hex(8)
        # In the order of their numbers: an entry that comes again moves to the end.
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()

    def exchange(self, origin: str, since: int, placements: Sequence[Placement], gone: Sequence[str] = ()) -> Reply:
        """Store a router's placements and return the others' after `since`, up to some megabytes.

        `since` is the cursor of its last call, 0 at first; `gone` are removed replicas.
        """
        for placement in placements:
            self._add(origin, Placement(*placement))
        if gone:
            dead = set(gone)
            for key in [key for key, entry in self._entries.items() if entry.placement.worker in dead]:
                self._drop(key)
        newer: list[_Entry] = []
        for entry in reversed(self._entries.values()):
            if entry.number <= since:
                break
            newer.append(entry)
        found: list[Placement] = []
        room, cursor = _REPLY_BYTES, since
        while newer and room > 0:
            entry = newer.pop()
            cursor = entry.number
            if entry.origin != origin:
                found.append(entry.placement)
                room -= entry.placement.size
        return Reply(self._epoch, cursor, found, bool(newer))

    def _add(self, origin: str, placement: Placement) -> None:
        prompt = placement.tokens or placement.body
        beside = placement.body if placement.tokens else placement.path
        space = (placement.worker, placement.lora, beside)
        chain = _chain(placement)
        for shorter in chain[:-1]:
            self._drop((*space, shorter))
        # A prompt shorter than one chunk has no hash.
        key = (*space, chain[-1] if chain else prompt)
        self._drop(key)
        self._numbered += 1
        self._entries[key] = _Entry(self._numbered, origin, placement)
        self._bytes += placement.size
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= entry.placement.size


def placement_of(worker: str, arguments: dict[str, Any]) -> Placement | None:
    """Make a placement of the arguments of `Router.select_worker`, None without a prompt."""
    found = Placement(worker, arguments.get("body", b""), arguments.get("path", ""))
    if (tokens := arguments.get("tokens")) is not None:
        import numpy as np

        found = found._replace(tokens=np.asarray(tokens, dtype="<u4").tobytes())
    if not found.tokens and not found.body:
        return None
    return found._replace(lora=arguments.get("lora"), session=arguments.get("session"))


def _chain(placement: Placement) -> list[int]:
    if placement.tokens:
        hashes = hash_blocks(placement.tokens, _CHUNK_TOKENS)
    else:
        hashes = hash_text(placement.body.decode(), _CHUNK_BYTES)
    found: list[int] = hashes.tolist()
    return found
