"""cachelb: which replica already holds this prompt's KV cache."""

from __future__ import annotations

from cachelb.errors import CachelbError, SnapshotError, UnknownWorkerError

__all__ = ["CachelbError", "SnapshotError", "UnknownWorkerError"]
