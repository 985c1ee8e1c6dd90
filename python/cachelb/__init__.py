"""cachelb: which replica already holds this prompt's KV cache."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from cachelb import index  # not lazy: pickles name its classes by this module
from cachelb._core import Decision
from cachelb.common.moved import MovedModules
from cachelb.errors import CachelbError, NoWorkerAvailable, Overloaded, UnknownWorkerError

__all__ = [
    "Adaptive",
    "Admission",
    "CacheAware",
    "CachelbError",
    "Decision",
    "Health",
    "KvAware",
    "LeastLoaded",
    "NoWorkerAvailable",
    "Overloaded",
    "PairDecision",
    "Pairs",
    "Policy",
    "Rendezvous",
    "RequestBodies",
    "Router",
    "UnknownWorkerError",
    "__version__",
    "index",
    "policies",
]

sys.meta_path.insert(0, MovedModules())

if TYPE_CHECKING:
    from cachelb import policies
    from cachelb.admission import Admission
    from cachelb.bodies import RequestBodies
    from cachelb.decision import PairDecision
    from cachelb.policies import Adaptive, CacheAware, KvAware, LeastLoaded, Policy, Rendezvous
    from cachelb.router import Health, Pairs, Router

    __version__: str
else:
    from cachelb.common.exports import lazy

    # Imported on first use: they would triple the import time.
    __getattr__ = lazy(
        __name__,
        {
            "cachelb": ("policies",),
            "cachelb.admission": ("Admission",),
            "cachelb.bodies": ("RequestBodies",),
            "cachelb.decision": ("PairDecision",),
            "cachelb.policies": ("Adaptive", "CacheAware", "KvAware", "LeastLoaded", "Policy", "Rendezvous"),
            "cachelb.router": ("Health", "Pairs", "Router"),
            "cachelb.common.version": ("__version__",),
        },
    )

    def __dir__() -> list[str]:
        """List the public names, those that are imported on first use too."""
        return list(__all__)
