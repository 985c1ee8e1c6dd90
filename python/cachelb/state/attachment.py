"""What all transports have in common: they are attached to a router, and run an exchange."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachelb.runs import Runs
from cachelb.state.exchange import Exchange, is_shared, secrets_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cachelb.router import Router
    from cachelb.secret import Secret
    from cachelb.state.carrier import Carrier
    from cachelb.state.exchange import ExchangeSettings
    from cachelb.state.stats import StateStats


class Attachment:
    """Shares the state of one router at a time."""

    def __init__(self, settings: ExchangeSettings) -> None:
        self._settings = settings
        self._runs: Runs[Exchange] = Runs()

    def start(self, router: Router[Any], /) -> None:
        """Begin to share.

        Args:
            router: Whose state.

        Raises:
            OSError: The transport cannot begin here.
            ValueError: The router has no `secret`.
            RuntimeError: It runs already, for each shares one router; or the router shares through another one.
        """
        forked = self._runs.claim(self)
        if is_shared(router):
            raise RuntimeError("this router shares its state already: detach what does, or attach one of them only")
        secrets = secrets_of(router)
        self._runs.latest = run = Exchange(router, self._carrier(secrets), self._settings)
        try:
            # The child of a fork starts in the middle of a selection, which waits for no peer.
            run.start(wait=not forked)
        except BaseException:
            self._runs.latest = None
            run.stop()
            raise

    def _carrier(self, secrets: Sequence[Secret]) -> Carrier:
        raise NotImplementedError

    def stop(self) -> None:
        """End sharing: close every socket, wait for the thread and forget what others booked. Idempotent."""
        self._runs.stop()

    def stats(self) -> StateStats:
        """Return how sharing goes.

        Returns:
            Counters since the start.

        Raises:
            RuntimeError: It does not run; in the child of a fork, not before the router is used.
        """
        run = self._runs.latest
        if run is None or not self._runs.is_here():
            raise RuntimeError(f"this {type(self).__name__} is not attached to a router: router.attach(it) first")
        return run.stats()
