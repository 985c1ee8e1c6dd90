"""Keys of `request_router_kwargs`: options of `cachelb.Router`, of Ray's prefix router, and of the adapter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from cachelb.common.arguments import number, require
from cachelb.common.secret import VARIABLE
from cachelb.common.secret import read as read_secret
from cachelb.router import Router
from cachelb.router.flat import grouped

RAY_NAMES = frozenset(
    {
        "imbalanced_threshold",
        "match_rate_threshold",
        "do_eviction",
        "eviction_threshold_chars",
        "eviction_target_chars",
        "eviction_interval_secs",
    }
)
"""The options of Ray's own prefix router. Any of them selects the policy `prefix-affinity`, which has them all."""

_DEFAULTS: dict[str, Any] = {
    # Serve reports the end of every request, and trusts a queue length for ten seconds.
    "reconcile_grace_s": None,
    "max_report_age_s": 10.0,
}


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the adapter itself."""

    shared: bool = False  # share placements with the routers of other processes, through a detached actor
    share_load: bool = False  # share load too, with hashes in place of prompts: `RayState`
    share_interval_s: float | None = None  # between two calls of the actor; None is 0.5, and 0.05 with `share_load`
    share_max_mb: float = 64.0  # that the actor keeps
    unrouted_ttl_s: float = 30.0  # a choice counts as load without a sign that it was used

    def __post_init__(self) -> None:
        for name in ("shared", "share_load"):
            require(name, getattr(self, name), bool, "True or False")
        if self.shared and self.share_load:
            raise ValueError("share_load shares placements too: leave shared out")
        for name in ("share_interval_s", "share_max_mb", "unrouted_ttl_s"):
            value = getattr(self, name)
            if value is not None or name != "share_interval_s":
                number(name, value, most=1e6)


def build(given: Mapping[str, Any]) -> tuple[Router[str], Options]:
    """Build the router of `request_router_kwargs`, still without workers, and the options of the adapter.

    Example:
        >>> router, options = build({"policy": "power-of-two", "shared": True})
        >>> router.policy.name, options.shared
        ('power-of-two', True)
    """
    own = {option.name for option in fields(Options)}
    options = Options(**{name: value for name, value in given.items() if name in own})
    if options.share_load and not read_secret(given.get("secret")):
        raise ValueError(f"share_load needs secret: a text that all routers of the deployment share, or {VARIABLE}")
    routing = {**_DEFAULTS, **{name: value for name, value in given.items() if name not in own}}
    if RAY_NAMES & routing.keys():
        routing.setdefault("policy", "prefix-affinity")
    return Router(**grouped(routing)), options
