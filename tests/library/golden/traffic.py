"""Seeded requests, and engines that hold blocks and announce them: nothing here depends on what a router does."""

from __future__ import annotations

import json
from array import array
from collections import OrderedDict
from functools import lru_cache
from hashlib import blake2b
from random import Random
from typing import Any

import msgpack  # type: ignore[import-untyped]

BLOCK = 16
_SYSTEMS = (64, 160, 400, 16, 0, 1200)
"""Tokens of the prompts that conversations begin with."""


def tokens_of(conversation: int, turn: int, more: int = 0) -> list[int]:
    """Return a conversation's prompt: each turn begins with the one before."""
    system = conversation % len(_SYSTEMS)
    own = 10_000 + 5000 * conversation
    return [*range(1000 * system, 1000 * system + _SYSTEMS[system]), *range(own, own + 40 * turn + more)]


def request(draw: Random, *, only_tokens: bool = False, long: int = 0) -> dict[str, Any]:
    """Draw the arguments of a request."""
    conversation, turn = draw.randrange(200 if long else 40), draw.randrange(1, 9)
    found = _prompt(conversation, turn, draw.randrange(40) + long, 0 if only_tokens else draw.randrange(14))
    if draw.random() < 0.5:
        found["session"] = f"session{conversation}"
    if draw.random() < 0.2:
        found["tenant"], found["priority"] = f"tenant{conversation % 3}", draw.randrange(3)
    if draw.random() < 0.3:
        found["max_output_tokens"] = draw.randrange(1, 500)
    if draw.random() < 0.2:
        found["expected_output_tokens"] = draw.randrange(1, 300)
    return found


def _prompt(conversation: int, turn: int, more: int, kind: int) -> dict[str, Any]:
    """Return a prompt in one of the ways that routers take, most of them as tokens alone."""
    tokens = tokens_of(conversation, turn, more)
    if kind in {1, 2, 3}:
        words = " ".join(f"word{token}" for token in tokens[:120])
        body = {"model": "any", "messages": _messages(words, turn), "user": f"user{conversation}"}
        ways: list[dict[str, Any]] = [
            {"text": words},
            {"messages": _messages(words, turn)},
            {"body": json.dumps(body).encode(), "path": "/v1/chat/completions"},
        ]
        return ways[kind - 1]
    if kind == 4:
        return {"prompt_tokens": len(tokens), "by_load": True}
    beside: dict[int, dict[str, Any]] = {
        5: {"boundaries": [at for at in (64, 160, 400) if at < len(tokens)]},
        6: {"lora": f"adapter{conversation % 3}"},
        7: {"cache_salt": f"salt{conversation % 2}"},
        8: {"mm": [(conversation, 4, 20)]},
        9: {"cache_ttl_s": (5.0, 60.0)[conversation % 2]},
    }
    return {"tokens": tokens, **beside.get(kind, {})}


def _messages(words: str, turn: int) -> list[dict[str, str]]:
    cut = len(words) // (turn + 1)
    parts = [words[at * cut : (at + 1) * cut] for at in range(turn + 1)]
    return [
        {"role": "system" if not at else ("assistant", "user")[at % 2], "content": part}
        for at, part in enumerate(parts)
    ]


def _names(tokens: list[int]) -> list[int]:
    """Return the names of a prompt's blocks, each of all tokens up to its end."""
    return _names_of(array("I", tokens[: len(tokens) // BLOCK * BLOCK]).tobytes())


@lru_cache(4096)  # Every policy is asked for the same prompts.
def _names_of(content: bytes) -> list[int]:
    names = [0]
    for start in range(0, len(content), 4 * BLOCK):
        salt = names[-1].to_bytes(8, "little")
        name = blake2b(content[start : start + 4 * BLOCK], digest_size=8, salt=salt)
        names.append(int.from_bytes(name.digest(), "little"))
    return names[1:]


def _stored(names: list[int], tokens: list[int], known: int, medium: str) -> list[Any]:
    """Announce the blocks of a prompt from one on."""
    parent = names[known - 1] if known else None
    return ["BlockStored", names[known:], parent, tokens[known * BLOCK : len(names) * BLOCK], BLOCK, None, medium, None]


class Engine:
    """The cache of a worker: the least recently used blocks leave first."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._held: OrderedDict[int, None] = OrderedDict()
        self._offloaded: list[tuple[list[int], str]] = []
        self._sent = 0

    def serve(self, tokens: list[int]) -> tuple[int, list[Any]]:
        """Compute a prompt; return its cached tokens, and the events."""
        names = _names(tokens)
        known = next((at for at, name in enumerate(names) if name not in self._held), len(names))
        events = [_stored(names, tokens, known, "GPU")] if known < len(names) else []
        for name in reversed(names):  # The end of a prompt leaves first.
            self._held[name] = None
            self._held.move_to_end(name)
        gone = [self._held.popitem(last=False)[0] for _ in range(len(self._held) - self._capacity)]
        if gone:
            events.append(["BlockRemoved", gone, "GPU"])
        return known * BLOCK, events

    def offload(self, tokens: list[int], medium: str) -> list[Any]:
        """Keep a prompt in another medium too, and the last few there."""
        names = _names(tokens)
        self._offloaded.append((names, medium))
        events = [_stored(names, tokens, 0, medium)] if names else []
        if len(self._offloaded) > 3:
            gone, where = self._offloaded.pop(0)
            events.append(["BlockRemoved", gone[::-1], where])
        return events

    def clear(self) -> list[Any]:
        """Drop everything."""
        self._held.clear()
        self._offloaded.clear()
        return [["AllBlocksCleared"]]

    def message(self, events: list[Any]) -> tuple[int, bytes]:
        """Number a message of events."""
        self._sent += 1
        data: bytes = msgpack.packb([1000.0 + self._sent, events])
        return self._sent - 1, data
