"""Prefixes that prompts share as rendered, and as claimed by a reader."""

from __future__ import annotations

import json
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from benches.templates.agents import Agent, Request
from benches.templates.engine import Engine
from benches.templates.readers import Options

from cachelb.bodies import RequestBodies
from cachelb_lab.descriptions import BodyDescription, describe_body


@dataclass(frozen=True, slots=True)
class Share:
    """Shares of one prompt with the best earlier one, true and claimed, in parts of its length."""

    true: float
    claimed: float
    length: int


_LEAST: Final = 0.01


@dataclass(slots=True)
class Sum:
    """Prompts of one cell."""

    true: float = 0.0
    found: float = 0.0
    false: float = 0.0
    length: int = 0

    def add(self, share: Share) -> None:
        """Add a prompt, by its length."""
        self.true += share.true * share.length
        self.found += min(share.true, share.claimed) * share.length
        self.false += max(0.0, share.claimed - share.true) * share.length
        self.length += share.length

    @property
    def found_share(self) -> float:
        """Part of the true prefix that is claimed; all of it if there is hardly any, such as a preamble."""
        return self.found / self.true if self.true > _LEAST * self.length else 1.0

    @property
    def false_share(self) -> float:
        """Part of the prompts that is claimed beyond the true prefix."""
        return self.false / self.length if self.length else 0.0


def common(one: bytes, other: bytes) -> int:
    """Count the bytes that both begin with."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class Prompts:
    """Prompts that an engine of unbounded cache has computed."""

    def __init__(self) -> None:
        self._sorted: list[bytes] = []

    def add(self, prompt: bytes) -> int:
        """Return the bytes that some earlier prompt shares with this one, and keep it."""
        at = bisect_left(self._sorted, prompt)
        beside = self._sorted[max(0, at - 1) : at + 1]
        insort(self._sorted, prompt)
        return max((common(prompt, each) for each in beside), default=0)


def true_shares(engine: Engine, requests: Sequence[Request]) -> list[tuple[float, int]]:
    """Render all requests; return the share of each with the best earlier one, and its length. Raises RefusedError."""
    cache = Prompts()
    found = []
    for request in requests:
        prompt = engine.render(request.path, request.body)
        found.append((cache.add(prompt) / len(prompt), len(prompt)))
    return found


def described(requests: Iterable[Request], options: Options, model: str) -> list[BodyDescription]:
    """Read all requests to a model."""
    bodies = RequestBodies(**options)
    texts = [(json.dumps(each.body | {"model": model}).encode(), each.path) for each in requests]
    return [describe_body(text, path=path, bodies=bodies) for text, path in texts]


def claimed_shares(requests: Sequence[Request], options: Options, model: str) -> list[float]:
    """Return the share of each request with the best earlier one, as claimed by a reader."""
    read = described(requests, options, model)
    return [
        max((earlier.shared_with(this, block_size=1).share for earlier in read[:number]), default=0.0)
        for number, this in enumerate(read)
    ]


class Claims:
    """Claims by agent, options and model, computed once: they do not depend on the template."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], list[float]] = {}

    def of(self, agent: Agent, options: Options, model: str = "m") -> list[float]:
        """Return the claims of each request."""
        key = agent.name, repr(sorted(options.items())), model
        if key not in self._known:
            self._known[key] = claimed_shares(agent.requests(), options, model)
        return self._known[key]


def split(requests: Sequence[Request], shares: Sequence[Share]) -> tuple[Sum, Sum]:
    """Sum the next turns of sessions, and the first requests of further sessions."""
    turns, firsts = Sum(), Sum()
    for request, share in zip(requests, shares, strict=True):
        if request.continues:
            turns.add(share)
        elif request.session:
            firsts.add(share)
    return turns, firsts
