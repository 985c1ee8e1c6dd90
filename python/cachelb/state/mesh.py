"""Routers that talk to each other directly."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from cachelb.state.exchange import Exchange, ExchangeSettings
from cachelb.state.options import exchange_settings, text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, TypeAlias

    from cachelb.router import Router
    from cachelb.state.stats import StateStats

    Peers: TypeAlias = Sequence[str] | Callable[[], Sequence[str]]


class ZmqMesh:
    """Shares what a router places and books with the routers of its peers, without a server between them.

    Every router publishes at its own address and listens to all others. Attach it to a router with a `hash_seed` that
    all have in common: block hashes are all that is told of a prompt, and whoever has another seed takes part in load
    only. Needs `pip install 'cachelb[events]'`.

    Args:
        bind: Where to publish, such as "tcp://0.0.0.0:7700"; a port of "*" takes a free one, see `address`. The port
            above it answers those who ask for everything.
        peers: Addresses of all routers, this one's too if that is easier; or a function that returns them, asked every
            two seconds.
        secret: Shared by all: messages are encrypted, and who does not know it is refused. Without one, everybody who
            reaches the ports can read and write.
        interval_s: Seconds between two messages of what happened.
        peer_timeout_s: Seconds after which a silent router is gone, and its requests no longer count.
        warm_start_s: Seconds that attaching waits for somebody to tell what the fleet holds; 0 does not wait.
        ttl_s: Seconds that placements of others are believed without being found again here.
        max_mb: Megabytes of news that may wait while the transport is down.

    Raises:
        ModuleNotFoundError: pyzmq is not installed.
        TypeError: An argument is of another type.
        ValueError: An argument is out of range.

    Example:
        >>> from cachelb import Router
        >>> from cachelb.state import ZmqMesh
        >>> mesh = ZmqMesh("tcp://127.0.0.1:*", peers=[])
        >>> with Router(["gpu0"], hash_seed=7) as router:
        ...     router.attach(mesh)
        ...     mesh.stats().peers
        ()
    """

    def __init__(
        self,
        bind: str,
        peers: Peers,
        *,
        secret: str | None = None,
        interval_s: float = 0.005,
        peer_timeout_s: float = 2.0,
        warm_start_s: float = 0.0,
        ttl_s: float = 3600.0,
        max_mb: float = 16.0,
    ) -> None:
        try:
            importlib.import_module("zmq")
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("ZmqMesh needs pyzmq: pip install 'cachelb[events]'", name="zmq") from error
        self._bind = text("bind", bind)
        if not self._bind.startswith("tcp://"):
            raise ValueError(f"bind must be an address like tcp://0.0.0.0:7700, got {bind!r}")
        if isinstance(peers, str):
            raise TypeError(f"peers must be a sequence of addresses or a function, got the text {peers!r}")
        self._peers = peers if callable(peers) else tuple(text("a peer", peer) for peer in peers)
        self._secret = None if secret is None else text("secret", secret)
        self._settings: ExchangeSettings = exchange_settings(
            interval_s=interval_s,
            peer_timeout_s=peer_timeout_s,
            warm_start_s=warm_start_s,
            ttl_s=ttl_s,
            max_mb=max_mb,
        )
        self._run: Exchange | None = None
        self._abandoned: list[Exchange] = []
        self._address = ""

    @property
    def address(self) -> str:
        """Where this router publishes; empty before it does."""
        return self._address

    def start(self, router: Router[Any], /) -> None:
        """Begin to share.

        Args:
            router: Whose state.

        Raises:
            OSError: The address is in use.
            RuntimeError: It runs already; one mesh shares one router.
        """
        from cachelb.state.zmq_carrier import ZmqCarrier

        if self._run is not None and self._run.pid == os.getpid():
            raise RuntimeError("this mesh is attached already: make one ZmqMesh per router")
        if self._run is not None:
            # After a fork: the parent's sockets are kept unused, since collecting them would close them.
            self._abandoned.append(self._run)
        carrier = ZmqCarrier(self._bind, self._peers, self._secret)
        self._address = carrier.address
        self._run = Exchange(router, carrier, self._settings)
        self._run.start()

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
            raise RuntimeError("this mesh is not attached to a router")
        return self._run.stats()
