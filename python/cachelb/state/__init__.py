"""Several routers, one picture: what one places and books, the others know.

`ZmqMesh` needs no server. It is attached to a router.

Example:
    >>> from cachelb import Router
    >>> from cachelb.state import ZmqMesh
    >>> with Router(["gpu0", "gpu1"], hash_seed=7) as router:
    ...     router.attach(ZmqMesh("tcp://127.0.0.1:*", peers=[], secret="of the fleet"))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cachelb.state.mesh import ZmqMesh
    from cachelb.state.stats import PeerStats, StateStats

__all__ = ["PeerStats", "StateStats", "ZmqMesh"]

_HOMES = {"PeerStats": "stats", "StateStats": "stats", "ZmqMesh": "mesh"}


def __getattr__(name: str) -> object:
    """Import a class when it is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'cachelb.state' has no attribute {name!r}")
    return getattr(importlib.import_module(f"cachelb.state.{_HOMES[name]}"), name)
