"""Logs what was found out about workers."""

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


def log_size(key: str, stated: int, learned: int) -> None:
    """Log that the load reports of a worker contradict its stated number of KV blocks."""
    text = "worker %s has about %d KV blocks by its load reports, which count from now on; kv_blocks is %d: correct it"
    _log.warning(text, key, learned, stated)
