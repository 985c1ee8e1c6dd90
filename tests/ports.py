"""Ports for servers that are started later, or by another process."""

from __future__ import annotations

import contextlib
import random
import socket

# Below what systems give to outgoing connections: a port stays free until somebody listens there, and while a killed
# server is restarted.
PORTS = range(20_000, 32_000)


def free_ports(count: int, *, together: int = 1) -> list[int]:
    """Return loopback ports on which nobody listens.

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
