"""What sharing costs a selection: the same router alone and with a mesh and a peer, taking turns.

python -m benches.sharing_cost [SECONDS]

Two routers with 64 workers each; every prompt has 512 tokens, half of them new. Prints JSON lines for `report.py`.
"""

from __future__ import annotations

import json
import random
import socket
import statistics
import sys
import time

from cachelb import Router
from cachelb.state import ZmqMesh

WORKERS = [f"gpu{at}" for at in range(64)]
BATCH = 200


def address() -> str:
    """Find a port that is free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def batch(router: Router[str], dice: random.Random) -> float:
    """Route a batch. Returns the median in microseconds."""
    found = []
    head = list(range(256))
    for _ in range(BATCH):
        tokens = head + [dice.randrange(1 << 20) for _ in range(256)]
        start = time.perf_counter_ns()
        decision = router.select_worker(tokens=tokens)
        found.append(time.perf_counter_ns() - start)
        decision.on_first_token()
        decision.on_complete()
    return statistics.median(found) / 1e3


def main(seconds: float) -> None:
    """Measure."""
    dice = random.Random(1)
    with Router(WORKERS, hash_seed=7) as alone, Router(WORKERS, hash_seed=7) as shared, Router(WORKERS) as peer:
        first, second = address(), address()
        mesh = ZmqMesh(first, [second])
        shared.attach(mesh)
        peer.attach(ZmqMesh(second, [first]))
        while not mesh.stats().peers:
            time.sleep(0.01)
        found: dict[str, list[float]] = {"alone": [], "shared": []}
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            found["alone"].append(batch(alone, dice))
            found["shared"].append(batch(shared, dice))
        added = [b - a for a, b in zip(found["alone"], found["shared"], strict=True)]
        for name, values in [*found.items(), ("added", added)]:
            line = {
                "id": f"python/sharing/select/{name}",
                "unit": "us",
                "p50": statistics.median(values),
                "p99": max(values),
                "n": len(values) * BATCH,
                "note": "512 tokens, half new, 64 workers; median of the medians of batches, and the worst of them",
            }
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 20.0)
