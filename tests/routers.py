"""Routers from settings in the flat form of configurations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cachelb import Router
from cachelb.router.flat import grouped


def flat_router(workers: Iterable[str] = (), options: Mapping[str, Any] | None = None, **usual: Any) -> Router[str]:
    """A router with the usual settings, or `options` in their place."""
    return Router(list(workers), **grouped(usual | dict(options or {})))
