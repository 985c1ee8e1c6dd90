"""Policies of one's own."""

from __future__ import annotations

from collections.abc import Callable

from cachelb.policies import FleetView, RequestView


class Own:
    """A policy that is one function of the fleet."""

    needs = frozenset({"tokens"})

    def __init__(self, pick: Callable[[FleetView], int]) -> None:
        self.name = "own"
        self._pick = pick

    def choose(self, _request: RequestView, fleet: FleetView) -> int:
        return self._pick(fleet)
