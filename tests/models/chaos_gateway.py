"""The gateway of `cachelb serve` in a process, with a way in for the test: POST /admin on its admin address."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import signal
import sys
from pathlib import Path
from typing import Any

from cachelb import RequestBodies, Router
from cachelb.requests import read_request
from cachelb.serve import Admin, Gateway, Listener, Service, Upstreams
from cachelb.serve.asgi import Receive, Scope, Send, body_chunks, send_json
from cachelb.serve.service import run_in_loop
from cachelb.sources import MetricsSource

_PAGE_BYTES = 4096


class Crashes(logging.Handler):
    """Counts what the application did not catch. Answers that are torn on purpose are errors to uvicorn, too."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Count an exception."""
        self.count += record.exc_info is not None


def _resident_bytes() -> int:
    """Memory of this process, 0 where the system does not say."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * _PAGE_BYTES if statm.exists() else 0


def report(router: Router[str], crashes: Crashes) -> dict[str, Any]:
    """Say everything that the test compares."""
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
        "memory_bytes": router.memory_bytes,
        "crashes": crashes.count,
        "resident_bytes": _resident_bytes(),
    }


async def serve(router: Router[str], crashes: Crashes) -> None:
    """Serve as `cachelb serve` does, until SIGTERM."""
    async with Upstreams() as upstreams:
        exposed = ["x-cachelb-worker"]
        async with Gateway(router, upstreams, wait_s=10.0, expose_headers=exposed) as gateway:
            operators = Admin(router, readiness=gateway.readiness)

            async def admin(scope: Scope, receive: Receive, send: Send) -> None:
                if scope["path"] != "/admin":
                    await operators(scope, receive, send)
                    return
                asked = json.loads(await read_request(body_chunks(receive)))
                if asked["call"] == "report":
                    found: object = report(router, crashes) | {"open_in_gateway": gateway.open_requests}
                else:
                    found = getattr(router, asked["call"])(*asked["arguments"], **asked["options"])
                await send_json(send, 200, found)

            outside, inside = Listener(gateway, "127.0.0.1:0"), Listener(admin, "127.0.0.1:0")
            service = Service(gateway.readiness, [outside], gateway=gateway, admin=inside, drain_s=0.0)
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, service.stop)
            print(outside.url, inside.url, flush=True)  # noqa: T201 - the test reads it
            await service.run()


def main() -> None:
    """Serve the workers named on the command line."""
    bodies = RequestBodies(strict=True)
    router: Router[str] = Router(
        sys.argv[1:], seed=1, hash_seed=1, max_memory_mb=2, breaker_cooldown_s=0.5, bodies=bodies
    )
    crashes = Crashes()
    for name in ("uvicorn.error", "cachelb.serve"):
        logging.getLogger(name).addHandler(crashes)
        logging.getLogger(name).propagate = False
    with router:
        router.attach(MetricsSource(interval_s=1.0))
        run_in_loop(serve(router, crashes))


if __name__ == "__main__":
    main()
