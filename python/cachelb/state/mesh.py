"""Routers that talk to each other directly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachelb.events.options import bind_address, require_zmq
from cachelb.state.attachment import Attachment
from cachelb.state.options import exchange_settings, peer_addresses

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from cachelb.secret import Secret
    from cachelb.state.carrier import Carrier

    Peers: TypeAlias = Sequence[str] | Callable[[], Sequence[str]]


class ZmqMesh(Attachment):
    """Shares what a router places and books with the routers of its peers, without a server between them.

    Every router publishes at its own address and listens to all others. Attach it to a router with the `secret` of the
    fleet: messages are encrypted with keys made of it, and connections without it are refused. Needs
    `pip install 'cachelb[events]'`.

    Args:
        bind: Where to publish, such as "tcp://0.0.0.0:7700"; a port of "*" takes a free one, see `address`. The port
            above it answers those who ask for everything.
        peers: Addresses of all routers, this one's too if that is easier, 256 at most; or a function that returns them,
            asked every two seconds in a thread of its own; while it fails, those known stay.
        interval_s: Seconds between two messages of what happened.
        peer_timeout_s: Seconds after which a silent router is gone, and its requests no longer count.
        warm_start_s: Seconds that attaching waits for a peer to tell what the fleet holds; 0 does not wait.
        ttl_s: Seconds that placements of others are believed without being found again here.
        max_mb: Megabytes of news that may wait while the transport is down, and of each peer: for it
            while it does not read, and from it until it has told what was missed.
        share_fleet: Tell the others when workers are added, changed, removed or marked ready here, and do what they
            tell. A worker that is not known here is added if the workers are plain strings.

    Raises:
        ModuleNotFoundError: pyzmq is not installed.
        TypeError: An argument is of another type.
        ValueError: An argument is out of range.

    Example:
        >>> from cachelb import Router
        >>> from cachelb.state import ZmqMesh
        >>> mesh = ZmqMesh("tcp://127.0.0.1:*", peers=[])
        >>> with Router(["gpu0"], secret="known to all gateways") as router:
        ...     router.attach(mesh)
        ...     mesh.stats().peers
        ()
    """

    def __init__(
        self,
        bind: str,
        peers: Peers,
        *,
        interval_s: float = 0.005,
        peer_timeout_s: float = 1.5,
        warm_start_s: float = 0.0,
        ttl_s: float = 3600.0,
        max_mb: float = 16.0,
        share_fleet: bool = False,
    ) -> None:
        require_zmq("ZmqMesh")
        self._bind = bind_address(bind, like="tcp://0.0.0.0:7700")
        self._peers = peers if callable(peers) else tuple(peer_addresses(peers))
        super().__init__(
            exchange_settings(
                interval_s=interval_s,
                peer_timeout_s=peer_timeout_s,
                warm_start_s=warm_start_s,
                ttl_s=ttl_s,
                max_mb=max_mb,
                share_fleet=share_fleet,
            )
        )
        self._address = ""

    @property
    def address(self) -> str:
        """Where this router publishes; empty before it does."""
        return self._address

    def _carrier(self, secrets: Sequence[Secret]) -> Carrier:
        from cachelb.state.zmq_carrier import ZmqCarrier

        carrier = ZmqCarrier(self._bind, self._peers, secrets, self._settings.max_bytes)
        self._address = carrier.address
        return carrier
