"""State shared between routers: placements and bookings of each are known to all, and to one that starts later.

`ZmqMesh` needs no server, `RedisState` uses one; `SnapshotFile` keeps the workers' cached prefixes on disk. All are
attached to a router.

Example:
    >>> from cachelb import Router
    >>> from cachelb.state import ZmqMesh
    >>> with Router(["gpu0", "gpu1"], secret="known to all gateways") as router:
    ...     router.attach(ZmqMesh("tcp://127.0.0.1:*", peers=[]))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cachelb.state.mesh import ZmqMesh
    from cachelb.state.redis.state import RedisState
    from cachelb.state.snapshot_file import SnapshotFile, SnapshotFileStats
    from cachelb.types import PeerStats, StateStats

__all__ = ["PeerStats", "RedisState", "SnapshotFile", "SnapshotFileStats", "StateStats", "ZmqMesh"]

if not TYPE_CHECKING:
    from cachelb.common.exports import lazy

    __getattr__ = lazy(
        __name__,
        {
            "cachelb.state.mesh": ("ZmqMesh",),
            "cachelb.state.redis.state": ("RedisState",),
            "cachelb.state.snapshot_file": ("SnapshotFile", "SnapshotFileStats"),
            "cachelb.types": ("PeerStats", "StateStats"),
        },
    )
