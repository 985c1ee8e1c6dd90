"""Polling for conditions that send no notification."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

DEADLINE_S = 120.0


def wait_until(condition: Callable[[], object], timeout_s: float = DEADLINE_S, *, complaint: str = "") -> None:
    """Wait until a condition holds."""
    end, pause = time.monotonic() + timeout_s, threading.Event()
    while not condition():
        assert time.monotonic() < end, complaint or f"still not so after {timeout_s} s"
        pause.wait(0.003)


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds, in an event loop."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"still not so after {DEADLINE_S} s"
        await asyncio.sleep(0.003)
