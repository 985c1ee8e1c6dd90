"""cachelb: which replica already holds this prompt's KV cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachelb._core import (
    BlockTracker,
    Decision,
    Match,
    Namespace,
    PrefixMatch,
    RadixTree,
    hash_blocks,
    hash_text,
)
from cachelb.errors import (
    BodyError,
    CachelbError,
    ConfigError,
    NoWorkerAvailable,
    Overloaded,
    SnapshotError,
    TraceError,
    UnknownWorkerError,
)

__all__ = [
    "Admission",
    "BlockTracker",
    "BodyError",
    "BodyReader",
    "CachelbError",
    "ConfigError",
    "Decision",
    "Match",
    "Namespace",
    "NoWorkerAvailable",
    "Overloaded",
    "PairDecision",
    "PrefixMatch",
    "RadixTree",
    "RequestBodies",
    "Router",
    "SnapshotError",
    "TraceError",
    "UnknownWorkerError",
    "__version__",
    "hash_blocks",
    "hash_text",
]

if TYPE_CHECKING:
    from cachelb.admission import Admission
    from cachelb.bodies import BodyReader, RequestBodies
    from cachelb.decision import PairDecision
    from cachelb.router import Router

    __version__: str
else:
    # Imported on first use: they would triple the import time.
    _LAZY = {
        "Admission": "cachelb.admission",
        "BodyReader": "cachelb.bodies",
        "PairDecision": "cachelb.decision",
        "RequestBodies": "cachelb.bodies",
        "Router": "cachelb.router",
    }

    def __getattr__(name: str) -> object:
        """Import the router, and look up the version, on first use."""
        if name in _LAZY:
            from importlib import import_module

            value = globals()[name] = getattr(import_module(_LAZY[name]), name)
            return value
        if name == "__version__":
            from importlib.metadata import version

            return version("cachelb")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
