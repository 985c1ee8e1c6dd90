"""The router: a fleet of workers, an index of their cached prefixes, their load, and a policy."""

from __future__ import annotations

from cachelb.router.router import Router
from cachelb.router.settings import Health, Pairs

__all__ = ["Health", "Pairs", "Router"]
