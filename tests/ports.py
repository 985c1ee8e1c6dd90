"""Ports for servers that are started later, or by another process."""

from __future__ import annotations

import contextlib
import os
import random
import socket

# Below what systems give to outgoing connections: a port stays free until a test listens there, and while a killed
# server is restarted. Each process of pytest-xdist has a part of its own: a router goes on calling peers that are not
# there, and must not find one of another test.
_WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
_EACH = 12_000 // _WORKERS
# Short of the last one, which belongs to the port below it where two are taken together.
PORTS = range(20_000 + _WORKER * _EACH, 20_000 + (_WORKER + 1) * _EACH - 1)


def free_ports(count: int, *, together: int = 1) -> list[int]:
    """Return loopback ports without a listener.

    Args:
        count: How many, all different.
        together: So many ports from each on are free, and not among the others.
    """
    found: list[int] = []
    starts = PORTS[::together]
    with contextlib.ExitStack() as held:
        for start in random.SystemRandom().sample(starts, len(starts)):
            try:
                for port in range(start, start + together):
                    held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(start)
            if len(found) == count:
                return found
    raise RuntimeError(f"fewer than {count} times {together} ports are free between {PORTS.start} and {PORTS.stop}")
