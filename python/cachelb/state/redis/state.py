"""State shared between routers through a Redis server."""

from __future__ import annotations

from collections.abc import Sequence

from cachelb.common.extras import need
from cachelb.common.secret import Secret
from cachelb.state.attachment import Attachment
from cachelb.state.carrier import Carrier
from cachelb.state.options import megabytes, text


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

    def __init__(
        self,
        url: str,
        *,
        stream: str = "cachelb",
        interval_s: float = 0.02,
        peer_timeout_s: float = 1.5,
        warm_start_s: float = 0.0,
        ttl_s: float = 3600.0,
        max_mb: float = 16.0,
        max_server_mb: float = 64.0,
        share_fleet: bool = False,
    ) -> None:
        need("RedisState", "redis", "cryptography")
        self._url = text("url", url)
        self._stream = text("stream", stream)
        self._max_server_bytes = megabytes("max_server_mb", max_server_mb)
        super().__init__(
            interval_s=interval_s,
            peer_timeout_s=peer_timeout_s,
            warm_start_s=warm_start_s,
            ttl_s=ttl_s,
            max_mb=max_mb,
            share_fleet=share_fleet,
        )
        from cachelb.state.redis.link import RedisLink

        self._shown = RedisLink(self._url).shown

    def __repr__(self) -> str:
        return f"RedisState({self._shown!r}, stream={self._stream!r})"

    def _carrier(self, secrets: Sequence[Secret]) -> Carrier:
        from cachelb.state.redis.carrier import RedisCarrier
        from cachelb.state.redis.link import RedisLink
        from cachelb.state.seal import Seal

        link, frames = RedisLink(self._url), Seal(secrets, self._stream)
        return RedisCarrier(link, self._stream, frames, self._settings, self._max_server_bytes)
