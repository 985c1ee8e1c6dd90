"""Addresses for routers that share, and waiting for what they do."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def wait_until(done: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def free_addresses(count: int) -> list[str]:
    """Addresses whose port and the one above it are free now."""
    found: list[str] = []
    while len(found) < count:
        with socket.socket() as probe, socket.socket() as above:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
            try:
                above.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
        address = f"tcp://127.0.0.1:{port}"
        if address not in found:
            found.append(address)
    return found
