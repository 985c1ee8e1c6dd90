"""State shared between routers without a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TypeAlias

from cachelb.common.extras import need
from cachelb.common.secret import Secret
from cachelb.events.endpoints import pair_address
from cachelb.state.attachment import Attachment
from cachelb.state.carrier import Carrier
from cachelb.state.options import peer_addresses

Peers: TypeAlias = Sequence[str] | Callable[[], Sequence[str]]


@dataclass(eq=False, repr=False)
class ZmqMesh(Attachment):
    """Shares a router's placements and bookings with its peers, without a server between them.

    Every router publishes at its own address and subscribes to all others. Attach it to a router with the `secret` of
    the fleet: messages are encrypted with keys derived from it, and connections without it are refused. Needs
    the extra `events`.

    Args:
        bind: Where to publish, such as "tcp://0.0.0.0:7700"; a port of "*" takes a free one, see `address`. The port
            above it answers requests for snapshots.
        peers: Addresses of all routers, 256 at most, optionally with this one's; or a function that returns them,
            called every two seconds in a thread of its own. While it fails, the known peers stay.
        interval_s: Seconds between two messages of changes.
        peer_timeout_s: Seconds after which a silent router is gone, and its requests no longer count.
        warm_start_s: Seconds that attaching waits for a peer's snapshot; 0 does not wait.
        ttl_s: Seconds that remote placements are trusted unless a request finds them again.
        max_mb: Megabytes of changes that may wait while the transport is down, and per peer: for it while it does not
            read, and from it until its snapshot has come.
        share_fleet: Publish added, changed, removed and ready workers, and apply remote changes of the fleet. An
            unknown worker is added if the workers are plain strings.

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

    bind: str
    peers: Peers
    _: KW_ONLY
    interval_s: float = 0.005

    def __post_init__(self) -> None:
        """Check the options."""
        need("ZmqMesh", "zmq")
        self.bind = pair_address("bind", self.bind, "tcp://0.0.0.0:7700", listens=True)
        self.peers = self.peers if callable(self.peers) else tuple(peer_addresses(self.peers))
        super().__post_init__()
        self._address = ""

    @property
    def address(self) -> str:
        """The address where this router publishes; empty before it does."""
        return self._address

    def _carrier(self, secrets: Sequence[Secret]) -> Carrier:
        from cachelb.state.zmq_carrier import ZmqCarrier

        carrier = ZmqCarrier(self.bind, self.peers, secrets, self.max_bytes)
        self._address = carrier.address
        return carrier
