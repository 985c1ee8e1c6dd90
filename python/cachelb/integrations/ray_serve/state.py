"""Routers in a Ray cluster that share their state through an actor."""

from __future__ import annotations

import threading
import weakref
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from cachelb.integrations.ray_serve.carrier import RayCarrier
from cachelb.state.attachment import Attachment
from cachelb.state.options import text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from cachelb.common.secret import Secret
    from cachelb.integrations.ray_serve.carrier import Trade
    from cachelb.router import Router


@dataclass(eq=False, repr=False)
class RayState(Attachment):
    """Shares load and placements with all routers in the cluster that have one of the same name.

    The messages are those of `cachelb.state.ZmqMesh`; here one detached actor passes them on, so that no router needs
    an address. Each router calls it once per interval, in a thread, so a change reaches the others after at most two
    intervals. The actor keeps the newest messages; if it is lost, another one is started, and the routers exchange
    snapshots. While it is away, each goes on alone. All routers need the same `secret`, block size and models.

    Args:
        name: Name of the group of routers that share.
        interval_s: Seconds between two calls of the actor.
        peer_timeout_s: Seconds after which a silent router is gone and its requests no longer count.
        warm_start_s: Seconds that attaching waits for a peer's snapshot; 0 does not wait.
        ttl_s: Seconds that remote placements are trusted unless a request finds them again.
        max_mb: Megabytes of changes that may wait here while the actor is away, and that the actor keeps.
        share_fleet: Publish added, changed, removed and ready workers, and apply remote changes of the fleet. An
            unknown worker is added if the workers are plain strings.
        ends_with_serve: End the actor with Ray Serve, and start none where Serve does not run.

    Raises:
        TypeError: An argument is of another type.
        ValueError: An argument is out of range.

    Example:
        >>> from cachelb.integrations.ray_serve.state import RayState
        >>> RayState("chat", interval_s=0.1).name
        'chat'
    """

    name: str
    _: KW_ONLY
    interval_s: float = 0.05
    peer_timeout_s: float = 5.0
    ends_with_serve: bool = False

    def __post_init__(self) -> None:
        """Check the options."""
        text("name", self.name)
        super().__post_init__()

    def _carrier(self, secrets: Sequence[Secret]) -> RayCarrier:
        del secrets  # the cluster is trusted
        return RayCarrier(self._connector())

    def _connector(self) -> Callable[[], Trade]:
        """Return the function that finds the actor."""
        from cachelb.integrations.ray_serve.actor import trader

        return trader(f"state:{self.name}", self.max_bytes, ends_with_serve=self.ends_with_serve)


def close_with(owner: object, router: Router[Any]) -> None:
    """Close a router after its owner was collected, in a thread of its own, as it may wait for the actor."""
    weakref.finalize(owner, _close, router).atexit = False


def _close(router: Router[Any]) -> None:
    threading.Thread(target=router.close, name="cachelb-state-end", daemon=True).start()
