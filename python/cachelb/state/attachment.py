"""Base of all transports: attached to a router, they run an exchange."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from cachelb.common.runs import Runs
from cachelb.common.secret import VARIABLE
from cachelb.state.exchange import Exchange
from cachelb.state.options import ExchangeSettings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cachelb.common.secret import Secret
    from cachelb.router import Router
    from cachelb.state.carrier import Carrier
    from cachelb.types import StateStats


class Attachment(ExchangeSettings):
    """Shares the state of one router at a time."""

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        self._runs: Runs[Exchange] = Runs()

    def start(self, router: Router[Any], /) -> None:
        """Start sharing.

        Args:
            router: The router to share.

        Raises:
            OSError: The transport cannot begin here.
            ValueError: The router has no `secret`.
            RuntimeError: It is running already, as each shares one router; or the router shares through another one.
        """
        forked = self._runs.claim(self)
        state = router.shared_state
        if state.exchange is not None and state.exchange.pid == os.getpid():
            raise RuntimeError("this router shares its state already: detach what does, or attach one of them only")
        if not state.secrets:
            raise ValueError(
                "a router that shares its state needs a secret that all others have too: build it with secret=..., or"
                f" set {VARIABLE}"
            )
        self._runs.latest = run = Exchange(router, self._carrier(state.secrets), self)
        try:
            # A forked child starts in the middle of a selection, which must not wait for a peer.
            run.start(wait=not forked)
        except BaseException:
            self._runs.latest = None
            run.stop()
            raise

    def _carrier(self, secrets: Sequence[Secret]) -> Carrier:
        raise NotImplementedError

    def stop(self) -> None:
        """Stop sharing: close every socket, wait for the thread and drop remote bookings. Idempotent."""
        self._runs.stop()

    def stats(self) -> StateStats:
        """Return the counters of sharing.

        Returns:
            Counters since the start.

        Raises:
            RuntimeError: It is not running; in a forked child it starts once the router is used.
        """
        run = self._runs.latest
        if run is None or not self._runs.is_here():
            raise RuntimeError(f"this {type(self).__name__} is not attached to a router: router.attach(it) first")
        return run.stats()
