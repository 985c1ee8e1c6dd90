"""Statistics of sharing, part of a router's statistics, which are defined below this package."""

from __future__ import annotations

from cachelb.types import PeerStats, StateStats

__all__ = ["PeerStats", "StateStats"]
