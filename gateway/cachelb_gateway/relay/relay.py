"""A relay of KV cache events, and its statistics."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from cachelb.common.arguments import listed, require, whole
from cachelb.common.extras import need
from cachelb.common.runs import Runs
from cachelb.events.endpoints import DEFAULT_PORT, Endpoint, pair_address
from cachelb.events.options import FleetSettings, relay_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Self

    from cachelb.events import StreamStats
    from cachelb.events.sink import KvSink
    from cachelb.events.zmq.subscriber import Subscriber
    from cachelb_gateway.relay.service import Service


@dataclass(frozen=True, slots=True)
class RelayStats:
    """Statistics of a relay. Counters are those since the start.

    Attributes:
        streams: Per key and rank of the workers followed now; the rank is None for a worker without ranks.
        subscribers: Current subscriptions of gateways to streams.
        published: Messages of engines that were published.
        replays: Requests of gateways that were forwarded to engines.
        refused: Refused requests: for workers without a replay socket, too many at once, or of strangers.
        dropped: Messages that a gateway did not take fast enough; it requests them again.

    Example:
        >>> from cachelb_gateway.relay import Relay
        >>> Relay("tcp://127.0.0.1:*").stats().subscribers
        0
    """

    streams: Mapping[tuple[str, int | None], StreamStats]
    subscribers: int = 0
    published: int = 0
    replays: int = 0
    refused: int = 0
    dropped: int = 0


_MOST_RANKS = 4096
"""Ranks of a worker; a router has the same limit."""


class Relay:
    """Subscribes to the KV cache events of every worker once, for any number of gateways behind it.

    A gateway passes its address to `ZmqSource(relay=...)` and then behaves as if connected to the engines: messages
    keep their numbers, missed ones are requested from the engine's replay socket through the relay, and gateways are
    notified when an engine disconnects, so that they detect restarts. The relay keeps no state and reads no payload.

    It follows the workers of the router that it is attached to, or as a context manager those given, in one thread.
    Memory is bounded: beyond `hwm`, messages that a gateway does not read are dropped for it, and it requests them
    again. With a secret, only gateways that share it can connect; engines have none, so restrict access to them.

    Args:
        bind: Where to publish: `tcp://host:port`; the port above passes replays on.
        workers: Keys of the workers, or a mapping from keys to numbers of data-parallel ranks. Not for a relay that is
            attached to a router.
        secret: Shared with the gateways, 16 characters or more; by default that of `CACHELB_SECRET` in the
            environment. Without one, any client that reaches the ports can read the engines' messages.
        hwm: Messages kept for one stream of one gateway that does not read.
        default_port: As for `ZmqSource`.
        replay_port: Likewise.
        endpoints: Likewise.
        discover: Likewise.
        topic_filter: Likewise.
        rcvhwm: Likewise.

    Raises:
        ModuleNotFoundError: pyzmq is not installed, or aiohttp for `discover`.
        TypeError: An argument is of another type.
        ValueError: An argument is out of range.

    Example:
        >>> from cachelb import Router
        >>> from cachelb.events import ZmqSource
        >>> from cachelb_gateway.relay import Relay
        >>> with Relay("tcp://127.0.0.1:*", workers=["http://gpu0:8000"], replay_port=5657) as relay:
        ...     with Router(["http://gpu0:8000"], policy="kv-aware") as router:
        ...         router.attach(ZmqSource(relay=relay.address))
    """

    def __init__(
        self,
        bind: str,
        *,
        workers: Iterable[str] | Mapping[str, int] = (),
        secret: str | Sequence[str] | None = None,
        hwm: int = 10_000,
        default_port: int = DEFAULT_PORT,
        replay_port: int | None = None,
        endpoints: Mapping[str, Endpoint] | Callable[[str], Endpoint | None] | None = None,
        discover: bool = False,
        topic_filter: str = "",
        rcvhwm: int = 10_000,
    ) -> None:
        given = locals()
        need("Relay", "zmq")
        whole("hwm", hwm, 1)
        self._bind, self._hwm = pair_address("bind", bind, "tcp://0.0.0.0:7800", listens=True), hwm
        self._workers, self._keys = _ranks(workers), relay_keys(secret)
        shared = {each.name: given[each.name] for each in fields(FleetSettings) if each.name in given}
        self._settings = FleetSettings(**shared, replay_timeout_s=1.0)
        self._lock = threading.Lock()
        self._runs: Runs[Subscriber] = Runs()
        self._service: Service | None = None

    @property
    def address(self) -> str:
        """The address where it publishes, for `ZmqSource(relay=...)`; empty before it does."""
        return "" if self._service is None else self._service.address

    def start(self, router: KvSink | None = None, /) -> None:
        """Start relaying. A forked child starts nothing: the relay stays with the parent.

        Args:
            router: The router whose workers to follow, None for those given.

        Raises:
            OSError: The address cannot be used.
            RuntimeError: It is running already.
        """
        from cachelb.events.zmq.subscriber import Subscriber
        from cachelb_gateway.relay.service import Service

        if self._runs.claim(self):
            self._service = None
            return
        service = Service(self._bind, self._hwm, self._given if router is None else router.event_sink.ranks, self._keys)
        self._runs.latest = Subscriber(self._settings, service, service=service, name="cachelb-kv-relay")
        self._service = service
        self._runs.latest.start()

    def stop(self) -> None:
        """Stop relaying: close every socket and wait for the thread. Idempotent."""
        self._runs.stop()

    def sync_workers(self, workers: Iterable[str] | Mapping[str, int]) -> None:
        """Relay the events of exactly these workers; known ones go on without interruption.

        Args:
            workers: Keys of the workers, or a mapping from keys to numbers of data-parallel ranks.

        Raises:
            TypeError: A key is not a string, or a number not an integer.
            ValueError: A number is below 1.
        """
        found = _ranks(workers)
        with self._lock:
            self._workers = found

    def add_worker(self, key: str, *, dp_size: int = 1) -> None:
        """Relay the events of one more worker.

        Args:
            key: Its key.
            dp_size: Its data-parallel ranks.

        Raises:
            TypeError: The key is not a string.
            ValueError: The number is below 1.
        """
        added = _ranks({key: dp_size})
        with self._lock:
            self._workers = {**self._workers, **added}

    def remove_worker(self, key: str) -> None:
        """Stop relaying the events of a worker. An unknown key is ignored.

        Args:
            key: Its key.
        """
        with self._lock:
            self._workers = {known: ranks for known, ranks in self._workers.items() if known != key}

    def stats(self) -> RelayStats:
        """Return the counters of the relay.

        Returns:
            Counters since the start; all zero before it.
        """
        run, service = self._runs.latest, self._service
        if run is None or service is None:
            return RelayStats({})
        counters = ("subscribers", "published", "replays", "refused", "dropped")
        return RelayStats(run.stats().streams, **{name: getattr(service, name) for name in counters})

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    def _given(self) -> list[tuple[str, int]]:
        return list(self._workers.items())


def _ranks(workers: Iterable[str] | Mapping[str, int]) -> dict[str, int]:
    """Check workers, and return the number of ranks of each."""
    if isinstance(workers, str):
        raise TypeError(f"workers must be a sequence of keys or a mapping, got the text {workers!r}")
    found = dict(workers) if isinstance(workers, Mapping) else dict.fromkeys(listed("workers", workers), 1)
    for key, ranks in found.items():
        require("a worker", key, str, "a key")
        whole(f"the ranks of {key!r}", ranks, 1, _MOST_RANKS)
    return found
