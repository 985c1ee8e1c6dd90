"""Routers in a forked child."""

from __future__ import annotations

import logging
import os
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cachelb.router.router import Router

_log = logging.getLogger("cachelb.router")

_routers: weakref.WeakSet[Router[Any]] = weakref.WeakSet()


def watch(router: Router[Any]) -> None:
    """Make a router drop its parent's state in every child from now on. The router is not kept alive."""
    _routers.add(router)


def _after_fork_in_child() -> None:
    for router in list(_routers):
        try:
            router._forked()
        except Exception:  # noqa: BLE001 - logged; the other routers must still drop the parent's requests
            _log.exception("a router could not start anew in process %d, which was forked", os.getpid())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
