"""State shared between routers through a Redis server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, InitVar, dataclass

from cachelb.common.extras import need
from cachelb.common.secret import Secret
from cachelb.state.attachment import Attachment
from cachelb.state.carrier import Carrier
from cachelb.state.options import megabytes, text


@dataclass(eq=False, repr=False)
class RedisState(Attachment):
    """Shares a router's placements and bookings with all routers on the same stream of a Redis or Valkey server.

    Attach it to a router with the `secret` of the fleet: messages are encrypted with keys derived from it, and others
    are refused and counted. Routing never waits for the server. While that is down, each router goes on alone;
    `stats().failing` has the reason. Needs the extra `redis`.

    Args:
        url: "redis://user:password@host:6379/0", "rediss://..." for TLS, or "unix:///path/of/socket"; options of
            redis-py such as "?ssl_ca_certs=/path" may follow. The password shows in no error, log or `repr`.
        stream: Name of the fleet's stream; all keys of the fleet begin with it.
        interval_s: Seconds between two messages of changes; each has an overhead of some 100 bytes.
        peer_timeout_s: Seconds after which a silent router is gone, and its requests no longer count.
        warm_start_s: Seconds that attaching waits for a peer's snapshot; 0 does not wait.
        ttl_s: Seconds that remote placements are trusted unless a request finds them again.
        max_mb: Megabytes of changes that may wait while the server is down.
        max_server_mb: Approximate megabytes of the stream on the server; a late reader requests a snapshot.
        share_fleet: Publish added, changed, removed and ready workers, and apply remote changes of the fleet. An
            unknown worker is added if the workers are plain strings.

    Raises:
        ModuleNotFoundError: redis-py or cryptography is not installed.
        TypeError: An argument is of another type.
        ValueError: An argument is out of range, or the url cannot be used.

    Example:
        >>> from cachelb.state import RedisState
        >>> RedisState("redis://:password@10.0.0.5:6379/0")
        RedisState('redis://10.0.0.5:6379/0', stream='cachelb')
    """

    url: InitVar[str]
    _: KW_ONLY
    stream: str = "cachelb"
    max_server_mb: float = 64.0

    def __post_init__(self, url: str) -> None:
        """Check the options."""
        need("RedisState", "redis", "cryptography")
        self._url = text("url", url)
        text("stream", self.stream)
        self._max_server_bytes = megabytes("max_server_mb", self.max_server_mb)
        super().__post_init__()
        from cachelb.state.redis.link import RedisLink

        self._shown = RedisLink(self._url).shown

    def __repr__(self) -> str:
        return f"RedisState({self._shown!r}, stream={self.stream!r})"

    def _carrier(self, secrets: Sequence[Secret]) -> Carrier:
        from cachelb.state.redis.carrier import RedisCarrier
        from cachelb.state.redis.link import RedisLink
        from cachelb.state.seal import Seal

        link, frames = RedisLink(self._url), Seal(secrets, self.stream)
        return RedisCarrier(link, self.stream, frames, self, self._max_server_bytes)
