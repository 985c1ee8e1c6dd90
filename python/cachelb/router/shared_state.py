"""A router's state, for transports that share it with other routers, and for snapshots."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from cachelb.common.arguments import number
from cachelb.common.secret import VARIABLE
from cachelb.errors import CachelbError, SnapshotError
from cachelb.types import Restored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from cachelb._core import RouterFleet, SnapshotPieces
    from cachelb.common.secret import Secret
    from cachelb.router.attachable import Sharing
    from cachelb.router.router import Router


TTL_S = 3600.0
"""Seconds that restored prefixes are trusted, unless a request finds them again."""


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
    def _fleet(self) -> RouterFleet:
        fleet = self._router._fleet
        if not hasattr(fleet, "share"):
            raise CachelbError("this build of cachelb._core shares no state: it lacks the cargo feature `sharing`")
        return fleet

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
        parts = self._fleet.share(origin, ttl_s, max_bytes, share_fleet=share_fleet)
        self._router._exchange = exchange
        return [self._router.policy.name_of(part) for part in parts]

    def end(self, exchange: Sharing) -> None:
        """End what `begin` began for the same transport."""
        if self._router._exchange is exchange:
            self._router._exchange = None
            self._fleet.unshare()

    def publish(self) -> list[bytes]:
        """Return the messages of the changes since the last call."""
        return self._fleet.publish()

    def publish_all(self) -> list[bytes]:
        """Return the messages of the whole state."""
        return self._fleet.publish_all()

    def heartbeat(self, now_us: int) -> bytes | None:
        """Return a message without changes, None while there are some to publish."""
        return self._fleet.heartbeat(now_us)

    def is_urgent(self) -> bool:
        """Return whether changes wait that others should have at once."""
        return self._fleet.is_urgent()

    def receive(self, message: bytes) -> str:
        """Apply another router's message.

        Returns:
            "applied"; "gap" if messages before it are missing: ask its sender for the whole state; "snapshot" or
            "complete" at the first and the last of those.

        Raises:
            CachelbError: It cannot be read.
        """
        return self._fleet.receive(message)

    def follow(self) -> list[tuple[str, Exception]]:
        """Apply the changes of workers that were received; return those that cannot be, by key of the worker."""
        failed: list[tuple[str, Exception]] = []
        for key, models in self._fleet.changes():
            try:
                self._router._open_models(models)
                self._fleet.follow(key)
            except (TypeError, ValueError) as error:
                failed.append((key, error))
        return failed

    def forget(self, origin: int) -> None:
        """Forget another router: its requests are no longer counted."""
        self._fleet.forget_origin(origin)

    def counts(self) -> tuple[dict[int, int], dict[str, int]]:
        """Count the bookings of each other router, and what was shared."""
        return self._fleet.sharing_counts()

    def snapshot(self) -> bytes:
        """Write every worker's cached prefixes, of all models, as block hashes of 8 to 10 bytes each.

        Requests are left out, since they end with the process. Selections go on meanwhile, and their placements may be
        included. Holders of the `secret` can test whether a given prompt was routed.

        Returns:
            The snapshot.

        Raises:
            SnapshotError: The router has no `secret`, so no other could use it.

        Example:
            >>> from cachelb import Router
            >>> router = Router(["gpu0", "gpu1"], secret="known to all gateways")
            >>> router.select_worker(tokens=range(64)).on_complete()
            >>> again = Router(["gpu0", "gpu1"], secret="known to all gateways")
            >>> again.shared_state.restore(router.shared_state.snapshot()).blocks
            4
            >>> again.select_worker(tokens=range(64)).matched_tokens
            48
        """
        return b"".join(self.pieces())

    def restore(self, data: Buffer, *, ttl_s: float = TTL_S) -> Restored:
        """Restore the workers' cached prefixes from a snapshot. Workers are matched by key.

        The order of eviction is kept. Restored prefixes are trusted like remote state: for `ttl_s`, longer once a
        request finds them again, and on a worker with KV events only as expected blocks.

        Args:
            data: The result of `snapshot`, in this process or another.
            ttl_s: Seconds that the prefixes are trusted.

        Returns:
            Counts of restored and skipped entries.

        Raises:
            SnapshotError: It is damaged, of another version, or of a router with another `secret`, `hash_seed` or block
                size; or this router has no `secret`. Nothing was changed then.
            TypeError: It is not bytes, or `ttl_s` is not a number.
            ValueError: `ttl_s` is not above 0.

        Example:
            >>> from cachelb import Router
            >>> Router(["gpu0"], secret="known to all gateways").shared_state.restore(b"?")
            Traceback (most recent call last):
            cachelb.errors.SnapshotError: snapshot refused: it is too short
        """
        ttl_s = number("ttl_s", ttl_s)
        self.check_secret()
        found = self._fleet.restore(data, ttl_s)
        age_s = max(0.0, time.time() - found.pop("kept_ms") / 1e3)
        return Restored(**found, age_s=age_s)

    def pieces(self) -> SnapshotPieces:
        """Begin a snapshot that is produced as it is read, so that it is never in memory as a whole."""
        self.check_secret()
        return self._fleet.keep(time.time_ns() // 1_000_000)

    def check_secret(self) -> None:
        """Refuse a router without a secret, whose snapshots no other can use, with `SnapshotError`."""
        if not self.secrets:
            raise SnapshotError(
                "this router has no secret, so a snapshot fits no other router: build it with secret=..., or set"
                f" {VARIABLE}, the same at every start"
            )

    def taken_ms(self, snapshot: bytes) -> int:
        """Return when a snapshot was taken, in milliseconds of Unix time."""
        return self._fleet.kept_ms(snapshot)
