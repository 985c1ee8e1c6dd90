"""Addresses for routers that share, and waiting for what they do."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.ports import free_ports


def wait_until(done: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def free_addresses(count: int) -> list[str]:
    """Addresses whose port and the one above it are free now."""
    return [f"tcp://127.0.0.1:{port}" for port in free_ports(count, together=2)]
