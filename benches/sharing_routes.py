"""The size of learned routes on the wire and in memory: as they are learned, and sent to a router that starts.

python -m benches.sharing_routes [ROUTES]

Conversations of ten messages at one router; another receives its routes. Sizes only: they do not depend on the machine.
"""

# ruff: noqa: SLF001 - what a transport would carry is measured without one
from __future__ import annotations

import json
import sys

from cachelb import Pairs, Router
from cachelb.policies import BoundaryLearning

WORKERS = [f"gpu{at}" for at in range(64)]
ENDS = list(range(64, 704, 64))


def router(origin: int, routes: int) -> Router[str]:
    """Make a router that keeps no index of blocks, so that routes are all there is."""
    made = Router(
        WORKERS,
        policy=BoundaryLearning(max_routes=routes),
        secret="known to all gateways",  # noqa: S106 - of this bench
        seed=1,
        pairs=Pairs(prefill="least-loaded"),
    )
    made._fleet.share(origin, 3600.0, 1 << 30)
    return made


def main(routes: int) -> None:
    """Measure."""
    one, late = router(1, routes), router(2, routes)
    before, told = late.stats().memory_bytes, 0
    for at in range(routes // len(ENDS)):
        one.select_worker(tokens=[at] * ENDS[-1], boundaries=ENDS).on_complete()
        told += sum(map(len, one._fleet.publish()))
    messages = one._fleet.publish_all()
    for message in messages:
        late._fleet.receive(message)
    heard = late.stats().remote_routes
    figures = {
        "learned": (told / one.stats().routes, "bytes published for a request, by its ten routes"),
        "snapshot": (sum(map(len, messages)) / heard, f"{len(messages)} messages"),
        "memory": ((late.stats().memory_bytes - before) / heard, f"{heard} received routes"),
    }
    for name, (value, note) in figures.items():
        line = {"id": f"python/sharing/routes/{name}", "unit": "bytes/route", "p50": value, "n": heard, "note": note}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
