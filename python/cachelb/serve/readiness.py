"""Whether this gateway can serve: `/health` and `/ready`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cachelb.serve.asgi import retry_header, send_json

if TYPE_CHECKING:
    from cachelb.router import Router
    from cachelb.serve.asgi import Send

_OUT: Final = frozenset({"not ready", "draining"})
"""States in which a worker takes no request; in the others it takes some while there is no better one."""


class Readiness:
    """The state that probes of a load balancer ask for."""

    def __init__(self, router: Router[Any]) -> None:
        """Begin ready, if workers are."""
        self._router = router
        self.ending = False  # not ready then, whatever its workers are

    @property
    def schedulable(self) -> int:
        """Workers that a whole request could go to."""
        rows = self._router.stats().workers
        return len({row.key for row in rows if row.state not in _OUT and row.role != "prefill"})

    async def answer(self, path: str, send: Send) -> None:
        """Answer `/health`, that the process is alive, or `/ready`: 200 if requests can be served, else 503."""
        if path == "/health":
            await send_json(send, 200, {"status": "ok"})
            return
        count = 0 if self.ending else self.schedulable
        document = {"ready": count > 0, "schedulable_workers": count}
        if count:
            await send_json(send, 200, document)
        else:
            await send_json(send, 503, document, [retry_header(1.0)])
