"""A router's state, for transports that share it with other routers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cachelb._core import SnapshotPieces
    from cachelb.router.attachable import Sharing
    from cachelb.router.router import Router
    from cachelb.secret import Secret


class SharedState:
    """The state of a router, for a transport between routers or a file; `Router.shared_state` returns it.

    A transport sends the messages of `publish` and `heartbeat` to all other routers, and those of `publish_all` to one
    that starts or that missed some. It gives the messages of others to `receive`, all from one thread.

    Example:
        >>> from cachelb import Router
        >>> one, other = (Router(["gpu0"], secret="known to all gateways") for _ in range(2))
        >>> one.shared_state.begin(1, 3600.0, 1 << 20), other.shared_state.begin(2, 3600.0, 1 << 20)
        ([], [])
        >>> one.select_worker(tokens=range(64)).on_complete()
        >>> [other.shared_state.receive(message) for message in one.shared_state.publish()]
        ['applied']
        >>> other.select_worker(tokens=range(64)).matched_tokens
        48
    """

    def __init__(self, router: Router[Any]) -> None:
        """Give access to the state of `router`."""
        self._router = router

    @property
    def secrets(self) -> Sequence[Secret]:
        """The secrets that messages are sealed with: the router's own, and others that it accepts."""
        return self._router._secrets

    @property
    def exchange(self) -> Sharing | None:
        """The transport that shares the state now."""
        return self._router._exchange

    @property
    def replicas(self) -> int:
        """Number of routers that serve the same fleet."""
        return self._router._plan.replicas

    def begin(
        self, origin: int, ttl_s: float, max_bytes: int, *, share_fleet: bool = False, exchange: Sharing | None = None
    ) -> list[str]:
        """Record changes from now on.

        Args:
            origin: Number of this router, which no other has.
            ttl_s: Seconds that others' placements are trusted unless a request finds them again.
            max_bytes: Most bytes of changes that wait for `publish`.
            share_fleet: Record changes of the workers too.
            exchange: The transport, whose statistics `Router.stats` shows.

        Returns:
            The policies whose prompts cannot be shared.
        """
        parts = self._router._fleet.share(origin, ttl_s, max_bytes, share_fleet=share_fleet)
        self._router._exchange = exchange
        return [self._router._policy_for(part) for part in parts]

    def end(self, exchange: Sharing) -> None:
        """End what `begin` began for the same transport."""
        if self._router._exchange is exchange:
            self._router._exchange = None
            self._router._fleet.unshare()

    def publish(self) -> list[bytes]:
        """Return the messages of the changes since the last call."""
        return self._router._fleet.publish()

    def publish_all(self) -> list[bytes]:
        """Return the messages of the whole state."""
        return self._router._fleet.publish_all()

    def heartbeat(self, now_us: int) -> bytes | None:
        """Return a message without changes, None while there are some to publish."""
        return self._router._fleet.heartbeat(now_us)

    def is_urgent(self) -> bool:
        """Return whether changes wait that others should have at once."""
        return self._router._fleet.is_urgent()

    def receive(self, message: bytes) -> str:
        """Apply another router's message.

        Returns:
            "applied"; "gap" if messages before it are missing: ask its sender for the whole state; "snapshot" or
            "complete" at the first and the last of those.

        Raises:
            CachelbError: It cannot be read.
        """
        outcome = self._router._fleet.receive(message)
        self._router._released()
        return outcome

    def follow(self) -> list[tuple[str, Exception]]:
        """Apply the changes of workers that were received; return those that cannot be, by key of the worker."""
        failed: list[tuple[str, Exception]] = []
        changes = self._router._fleet.changes()
        for key, models in changes:
            try:
                self._router._open_models(models)
                self._router._fleet.follow(key)
            except (TypeError, ValueError) as error:
                failed.append((key, error))
        if changes:
            self._router._released()
        return failed

    def forget(self, origin: int) -> None:
        """Forget another router: its requests are no longer counted."""
        self._router._fleet.forget_origin(origin)
        self._router._released()

    def counts(self) -> tuple[dict[int, int], dict[str, int]]:
        """Count the bookings of each other router, and what was shared."""
        return self._router._fleet.sharing_counts()

    def check_secret(self) -> None:
        """Refuse a router without a secret, whose snapshots no other can use, with `SnapshotError`."""
        self._router._need_secret()

    def snapshot(self) -> SnapshotPieces:
        """Begin a snapshot that is produced as it is read, so that it is never in memory as a whole."""
        return self._router._pieces()

    def taken_ms(self, snapshot: bytes) -> int:
        """Return when a snapshot was taken, in milliseconds of Unix time."""
        return self._router._fleet.kept_ms(snapshot)
