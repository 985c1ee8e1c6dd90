"""The Starlette example in a process of its own, with a way in for the test: POST /admin calls the router."""

from __future__ import annotations

import gc
import logging
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn
from examples.starlette_gateway import make_app
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from cachelb import Router
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


def main() -> None:
    """Serve the workers named on the command line."""
    router: Router[str] = Router(sys.argv[1:], seed=1, hash_seed=1, max_memory_mb=2, breaker_cooldown_s=0.5)
    crashes = Crashes()
    logging.getLogger("uvicorn.error").addHandler(crashes)
    logging.getLogger("uvicorn.error").propagate = False
    router.attach(MetricsSource(interval_s=1.0))

    async def admin(request: Request) -> JSONResponse:
        asked = await request.json()
        if asked["call"] == "report":
            return JSONResponse(report(router, crashes))
        return JSONResponse(getattr(router, asked["call"])(*asked["arguments"], **asked["options"]))

    app = make_app(router, wait_s=10.0, expose_headers=["x-cachelb-worker"])
    app.routes.append(Route("/admin", admin, methods=["POST"]))
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)  # noqa: T201 - the test reads it
        uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_keep_alive=600)).run(sockets=[listener])


if __name__ == "__main__":
    main()
