"""cachelb inside Ray Serve: a request router for `request_router_config`, and a tree for Ray's own prefix router.

`RayState` lets routers in a cluster share load and placements. All but `PrefixTree` need the extra `ray`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachelb.common.exports import lazy
from cachelb.integrations.ray_serve.prefix_tree import PrefixTree

if TYPE_CHECKING:
    from cachelb.integrations.ray_serve.actor import PrefixTreeActor, start_prefix_tree
    from cachelb.integrations.ray_serve.router import CachelbRequestRouter
    from cachelb.integrations.ray_serve.state import RayState

__all__ = ["CachelbRequestRouter", "PrefixTree", "PrefixTreeActor", "RayState", "start_prefix_tree"]

_find = lazy(
    __name__,
    {
        f"{__name__}.actor": ("PrefixTreeActor", "start_prefix_tree"),
        f"{__name__}.router": ("CachelbRequestRouter",),
        f"{__name__}.state": ("RayState",),
    },
)


def __getattr__(name: str) -> object:
    """Import the names that need Ray on first use."""
    try:
        return _find(name)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] == "cachelb":
            raise
        raise ModuleNotFoundError(
            f"{__name__}.{name} needs Ray Serve ({missing}): install it, or cachelb[ray]", name=missing.name
        ) from missing
