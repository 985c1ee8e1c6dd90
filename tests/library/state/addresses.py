"""Addresses for routers that share."""

from __future__ import annotations

from tests import waiting
from tests.ports import free_ports

wait_until = waiting.wait_until


def free_addresses(count: int) -> list[str]:
    """Addresses whose port and the one above it are free now."""
    return [f"tcp://127.0.0.1:{port}" for port in free_ports(count, together=2)]
