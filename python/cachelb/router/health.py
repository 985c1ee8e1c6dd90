"""Logs which workers are passed over because they show no sign of life."""

from __future__ import annotations

import logging

_log = logging.getLogger("cachelb.router")

_WHY = {
    "page": "its metrics page did not answer three times in a row",
    "tokens": "two requests in a row were given up without a first token",
}


def log_change(key: str, why: str | None) -> None:
    """Log that a worker became unreachable, for a reason, or that it no longer is."""
    if why is None:
        _log.info("worker %s is reachable again", key)
    else:
        _log.warning("worker %s is unreachable: %s; requests go to other workers while there are any", key, _WHY[why])
