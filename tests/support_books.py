"""What a router wrote down."""

from __future__ import annotations

from cachelb import Router


def endings(router: Router[str]) -> dict[str, int]:
    """Count the requests that ended, by how."""
    return {name: count for name, count in router.stats().endings.items() if count}
