"""cachelb: which replica already holds this prompt's KV cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachelb._core import BlockTracker, Match, Namespace, hash_blocks, hash_text
from cachelb.decision import Decision, PairDecision
from cachelb.errors import CachelbError, ConfigError, NoWorkerAvailable, SnapshotError, TraceError, UnknownWorkerError
from cachelb.router import Router
from cachelb.session import session_key

__all__ = [
    "BlockTracker",
    "CachelbError",
    "ConfigError",
    "Decision",
    "Match",
    "Namespace",
    "NoWorkerAvailable",
    "PairDecision",
    "Router",
    "SnapshotError",
    "TraceError",
    "UnknownWorkerError",
    "__version__",
    "hash_blocks",
    "hash_text",
    "session_key",
]

if TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name: str) -> str:
        """Read the version only when somebody asks: the metadata lookup would double the import time."""
        if name == "__version__":
            from importlib.metadata import version

            return version("cachelb")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
