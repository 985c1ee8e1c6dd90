"""The life of a gateway's process: from the first request to the last."""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import TYPE_CHECKING, Any, Final

from cachelb.arguments import seconds

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from cachelb.serve.gateway import Gateway
    from cachelb.serve.listener import Listener
    from cachelb.serve.readiness import Readiness

_END_S: Final = 5.0
"""For servers that are forced to end."""


class Service:
    """Serves a gateway's addresses until it is stopped, and ends within a grace period.

    Once stopped, it is not ready, so that load balancers take it out while it still serves for `drain_s`; then it
    accepts nothing more, lets open requests finish, those among them that wait for a worker, and ends those that are
    still open after `grace_s`.

    Example:
        >>> import asyncio, cachelb
        >>> from cachelb.serve import Admin, Listener, Service
        >>> async def main():
        ...     admin = Admin(cachelb.Router())
        ...     service = Service(admin.readiness, [Listener(admin, "127.0.0.1:0")])
        ...     service.stop()
        ...     await service.run()
        ...     return admin.readiness.ending
        >>> asyncio.run(main())
        True
    """

    def __init__(
        self,
        readiness: Readiness,
        listeners: Sequence[Listener],
        *,
        gateway: Gateway | None = None,
        admin: Listener | None = None,
        drain_s: float = 2.0,
        grace_s: float = 30.0,
    ) -> None:
        """Serve nothing yet.

        Args:
            readiness: What `/ready` answers, of the gateway and the admin application.
            listeners: Addresses for clients.
            gateway: The gateway behind them.
            admin: The admin address, which is served to the end.
            drain_s: Seconds to go on serving after `stop`, not ready.
            grace_s: Seconds after `stop` that open requests have, those of `drain_s` among them.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: An argument is out of range.
        """
        self._readiness, self._listeners, self._gateway, self._admin = readiness, list(listeners), gateway, admin
        self._drain_s = seconds("drain_s", drain_s, least=0.0)
        self._grace_s = seconds("grace_s", grace_s, least=0.0)
        self._stopped = asyncio.Event()
        self._forced = asyncio.Event()

    def stop(self, *, at_once: bool = False) -> None:
        """Begin the end; the second call ends open requests at once.

        Args:
            at_once: Do not drain.
        """
        if self._stopped.is_set():
            self._forced.set()
        self._readiness.ending = True
        if at_once:
            self._drain_s = 0.0
        self._stopped.set()

    async def run(self) -> None:
        """Serve until `stop`, and to the end."""
        loop = asyncio.get_running_loop()
        clients = [loop.create_task(each.serve()) for each in self._listeners]
        admin = None if self._admin is None else loop.create_task(self._admin.serve())
        servers = [*clients, *([] if admin is None else [admin])]
        stopping = loop.create_task(self._stopped.wait())
        await asyncio.wait([stopping, *servers], return_when=asyncio.FIRST_COMPLETED)
        if not self._stopped.is_set():  # a server ended by itself
            self.stop()
        stopping.cancel()
        end = loop.time() + self._grace_s
        await self._wait(min(self._drain_s, self._grace_s))
        self._accept_no_more()
        if clients:
            finished = loop.create_task(asyncio.wait(clients), name="clients")
            await self._wait(end - loop.time(), finished)
            for listener in self._listeners:
                listener.stop(force=True)
            if self._gateway is not None:
                await self._gateway.aclose()
            await asyncio.wait([finished], timeout=_END_S)
            for client in clients:
                client.cancel()  # if a connection does not close
        if self._admin is not None and admin is not None:
            self._admin.stop()
            await self._wait(_END_S, admin)  # a capture ends with a last line
            self._admin.stop(force=True)
            await asyncio.wait([admin], timeout=_END_S)
            admin.cancel()
        for result in await asyncio.gather(*servers, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    def _accept_no_more(self) -> None:
        for listener in self._listeners:
            listener.stop()
        if self._gateway is not None:
            self._gateway.close()

    async def _wait(self, delay_s: float, *others: asyncio.Task[Any]) -> None:
        """Wait so long, or until a second `stop`, or until another task is done."""
        forced = asyncio.ensure_future(self._forced.wait())
        await asyncio.wait([forced, *others], timeout=max(0.0, delay_s), return_when=asyncio.FIRST_COMPLETED)
        forced.cancel()


def run_in_loop(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in the fastest event loop there is, and leave all that was made so far out of collections."""
    factory = None
    gc.collect()
    gc.freeze()
    if sys.platform != "win32":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main)
