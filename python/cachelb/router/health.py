"""Logs what was found out about workers."""

from __future__ import annotations

import logging

_log = logging.getLogger("cachelb.router")

_WHY = {
    "page": "its metrics page did not answer three times in a row",
    "tokens": "two requests in a row were given up without a first token",
}
_FOUND = {
    "kv_blocks": "about %d KV blocks by its load reports, which count from now on; kv_blocks is %d: correct it",
    "block_size": "blocks of %d tokens by its KV events, which count; block_size is %d by its metrics",
    "gpu": "%.2f times as fast as others of its gpu by its first tokens, which count from now on: correct gpu",
}


def log_change(key: str, why: str | None) -> None:
    """Log that a worker became unreachable, for a reason, or that it no longer is."""
    if why is None:
        _log.info("worker %s is reachable again", key)
    else:
        _log.warning("worker %s is unreachable: %s; requests go to other workers while there are any", key, _WHY[why])


def log_contradiction(key: str, fact: str, stated: float, learned: float) -> None:
    """Log that a stated fact of a worker is contradicted, and which value is in use instead."""
    _log.warning("worker %s: " + _FOUND[fact], key, *((learned, stated) if fact != "gpu" else (learned,)))
