"""The router: your workers, what they hold, what they are doing, and a policy."""

from __future__ import annotations

from cachelb.router.router import Router

__all__ = ["Router"]
