"""cachelb: which replica already holds this prompt's KV cache."""

from __future__ import annotations

import sys
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
from cachelb.moved import MovedModules

__all__ = [
    "Adaptive",
    "Admission",
    "BlockTracker",
    "BodyError",
    "BodyReader",
    "CacheAware",
    "CachelbError",
    "ConfigError",
    "Decision",
    "KvAware",
    "LeastLoaded",
    "Match",
    "Namespace",
    "NoWorkerAvailable",
    "Overloaded",
    "PairDecision",
    "Policy",
    "PrefixMatch",
    "RadixTree",
    "Rendezvous",
    "RequestBodies",
    "Router",
    "SnapshotError",
    "TraceError",
    "UnknownWorkerError",
    "__version__",
    "hash_blocks",
    "hash_text",
    "policies",
]

sys.meta_path.insert(0, MovedModules())

if TYPE_CHECKING:
    from cachelb import policies
    from cachelb.admission import Admission
    from cachelb.bodies import BodyReader, RequestBodies
    from cachelb.decision import PairDecision
    from cachelb.policies import Adaptive, CacheAware, KvAware, LeastLoaded, Policy, Rendezvous
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
        "policies": "cachelb.policies",
    } | dict.fromkeys(("Adaptive", "CacheAware", "KvAware", "LeastLoaded", "Policy", "Rendezvous"), "cachelb.policies")

    def __getattr__(name: str) -> object:
        """Import the router and the policies, and look up the version, on first use."""
        if name in _LAZY:
            from importlib import import_module

            module = import_module(_LAZY[name])
            value = globals()[name] = module if name == "policies" else getattr(module, name)
            return value
        if name == "__version__":
            from importlib.metadata import version

            return version("cachelb")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        """List the public names, those that are imported on first use too."""
        return list(__all__)
