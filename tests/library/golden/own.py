"""Policies written in Python, as users write them."""

from __future__ import annotations

from cachelb.policies import FleetView, RequestView, lowest


class FewestTokens:
    """The fewest tokens to compute, with those that wait."""

    name = "own-fewest-tokens"
    needs = frozenset({"tokens", "load"})

    def choose(self, request: RequestView, fleet: FleetView) -> int:
        waiting = fleet.column("pending_prefill_tokens") + fleet.column("uncached_tokens")
        return lowest(waiting / fleet.column("weight"), request)


class Keyed:
    """Every session at its place, some requests anywhere, and an error now and then."""

    name = "own-keyed"
    needs = frozenset({"session", "prompt_tokens"})

    def choose(self, request: RequestView, fleet: FleetView) -> tuple[int, str]:
        if request.key is None:
            return request.randrange(len(fleet)), "no-key"
        if request.key % 13 == 0:
            raise ValueError("this key has no place")
        if request.random() < 0.1:
            return request.randrange(len(fleet)), "random"
        return request.key % len(fleet), "session" if request.session else "hash"


OWN = {"own-fewest-tokens": FewestTokens, "own-keyed": Keyed}
"""By name."""
