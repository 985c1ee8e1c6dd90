"""What all transports have in common: they are attached to a router, and run an exchange."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from cachelb.state.exchange import Exchange

if TYPE_CHECKING:
    from typing import Any

    from cachelb.router import Router
    from cachelb.state.carrier import Carrier
    from cachelb.state.exchange import ExchangeSettings
    from cachelb.state.stats import StateStats


class Attachment:
    """Shares the state of one router at a time.

    Args:
        settings: How to trade.
    """

    def __init__(self, settings: ExchangeSettings) -> None:
        self._settings = settings
        self._run: Exchange | None = None
        self._abandoned: list[Exchange] = []

    def start(self, router: Router[Any], /) -> None:
        """Begin to share.

        Args:
            router: Whose state.

        Raises:
            OSError: The transport cannot begin here.
            RuntimeError: It runs already; each shares one router.
        """
        if self._run is not None and self._run.pid == os.getpid():
            name = type(self).__name__
            raise RuntimeError(f"this {name} is attached already: make one {name} per router")
        if self._run is not None:
            # After a fork: the parent's sockets are kept unused, since collecting them would close them.
            self._abandoned.append(self._run)
        self._run = Exchange(router, self._carrier(), self._settings)
        self._run.start()

    def _carrier(self) -> Carrier:
        raise NotImplementedError

    def stop(self) -> None:
        """End sharing: close every socket, wait for the thread and forget what others booked. Idempotent."""
        run, self._run = self._run, None
        if run is not None and run.pid == os.getpid():
            run.stop()

    def stats(self) -> StateStats:
        """Return how sharing goes.

        Returns:
            Counters since the start.

        Raises:
            RuntimeError: It does not run.
        """
        if self._run is None:
            raise RuntimeError(f"this {type(self).__name__} is not attached to a router")
        return self._run.stats()
