"""A gateway of a simulated fleet that ignores everything: subclasses override what they need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Placed = tuple[int, int, int, int]


class QuietGateway:
    """A `cachelb_lab.sim.gateway.Gateway` but for `select`."""

    reasons: Sequence[str] = ("any",)

    def select_pair(self, request: int, tried: list[int], now: float) -> tuple[Placed | None, Placed] | None:
        raise NotImplementedError(f"request {request} at {now}, tried on {tried}")

    def first_token(self, ticket: int, now: float) -> None:
        """Do nothing."""

    def tokens(self, ticket: int, count: int, now: float) -> None:
        """Do nothing."""

    def finished(self, ticket: int, cached_tokens: int | None, now: float) -> None:
        """Do nothing."""

    def failed(self, ticket: int, now: float) -> None:
        """Do nothing."""

    def cancelled(self, ticket: int, now: float) -> None:
        """Do nothing."""

    def report(self, worker: int, load: tuple[int, int, int | None, float], at: float, now: float) -> None:
        """Do nothing."""

    def changed(self, worker: int, changes: list[tuple[Any, ...]], now: float) -> None:
        """Do nothing."""

    def set_ready(self, worker: int, ready: bool, now: float) -> None:
        """Do nothing."""


def follow(held: set[int], changes: list[tuple[Any, ...]]) -> None:
    """Apply what changed to the blocks that a worker holds."""
    for what, *rest in changes:
        if what == "stored":
            held.add(rest[0])
        elif what == "removed":
            held.discard(rest[0])
        else:
            held.clear()


def leading(blocks: list[int], known: set[int] | dict[int, Any]) -> int:
    """How many leading blocks are known."""
    for count, block in enumerate(blocks):
        if block not in known:
            return count
    return len(blocks)
