"""The gateway of `cachelb serve` in a process, with a way in for the test: a POST to an address of its own."""

from __future__ import annotations

import gc
import json
import logging
import signal
import sys
import threading
from operator import attrgetter
from pathlib import Path
from typing import Any

from tests.answering import Handler, answering

from cachelb import Health, RequestBodies, Router
from cachelb.sources import MetricsSource
from cachelb_gateway.serve import Gateway

_PAGE_BYTES = 4096


class Crashes(logging.Handler):
    """Counts exceptions that were logged."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Count an exception."""
        self.count += record.exc_info is not None


def _resident_bytes() -> int:
    """Memory of this process, 0 where the system does not report it."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * _PAGE_BYTES if statm.exists() else 0


def report(router: Router[str], crashes: Crashes) -> dict[str, Any]:
    """Return everything that the test compares."""
    gc.collect()  # decisions that were dropped in a cycle
    router.validate()
    stats = router.stats()
    return {
        "open_requests": stats.open_requests,
        "loads": router.loads(),
        "keys": router.keys(),
        "series": [worker.key for worker in stats.workers],
        "pending_prefill_tokens": sum(worker.pending_prefill_tokens for worker in stats.workers),
        "decode_blocks": sum(worker.decode_blocks for worker in stats.workers),
        "decisions": sum(stats.decisions.values()),
        "endings": stats.endings,
        "memory_bytes": router.stats().memory_bytes,
        "crashes": crashes.count,
        "resident_bytes": _resident_bytes(),
    }


def serve(router: Router[str], crashes: Crashes) -> None:
    """Serve as `cachelb serve` does, until SIGTERM."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    with Gateway(router, wait_s=10.0, expose_headers=["x-cachelb-worker"]) as gateway:

        def call(asked: dict[str, Any]) -> object:
            if asked["call"] == "report":
                open_requests = {
                    "open_in_gateway": gateway.open_requests,
                    "panicked": gateway.counts.get("panicked", 0),
                }
                return report(router, crashes) | open_requests
            return attrgetter(asked["call"])(router)(*asked["arguments"], **asked["options"])

        gateway.start("127.0.0.1:0", admin="127.0.0.1:0")

        def answer(handler: Handler) -> None:
            text = json.dumps(call(json.loads(handler.content()))).encode()
            handler.reply(text, headers={"Content-Type": "application/json"})

        with answering(answer) as url:
            print(gateway.urls[0], gateway.admin_url, url, flush=True)  # noqa: T201 - the test reads it
            ended.wait()


def main() -> None:
    """Serve the workers named on the command line."""
    bodies = RequestBodies(strict=True)
    router: Router[str] = Router(
        sys.argv[1:], seed=1, hash_seed=1, max_memory_mb=2, bodies=bodies, health=Health(breaker_cooldown_s=0.5)
    )
    crashes = Crashes()
    logging.getLogger("cachelb").addHandler(crashes)
    logging.getLogger("cachelb").propagate = False
    with router:
        router.attach(MetricsSource(interval_s=1.0))
        serve(router, crashes)


if __name__ == "__main__":
    main()
