"""The source of KV cache events over ZeroMQ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cachelb.common.extras import need
from cachelb.common.runs import Runs
from cachelb.events.options import FleetSettings
from cachelb.events.stats import ZmqSourceStats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cachelb.events.sink import KvSink
    from cachelb.events.zmq.subscriber import Subscriber


@dataclass(kw_only=True, eq=False, repr=False)
class ZmqSource(FleetSettings):
    """Subscribes to the KV cache events of every worker and applies them to the router's index.

    One thread serves all workers of the router, as they change. It subscribes, and requests earlier messages from the
    engine's replay socket, again whenever a message is missing. A slow or dead worker delays only itself. Without a
    replay socket, a missed message makes all known blocks of the worker doubtful: configure one.

    Engines publish at a fixed port of their host unless `endpoints` has another; vLLM needs
    `--kv-events-config '{"enable_kv_cache_events": true, "replay_endpoint": "tcp://*:5657"}'` for `replay_port=5657`.
    Rank r of a worker with data-parallel ranks publishes r ports higher. Needs the extra `events`.

    Args:
        default_port: Port of the event socket on a worker's host.
        replay_port: Port of the replay socket there; None if the engines have none.
        endpoints: Endpoints by worker key, for workers that are elsewhere, such as those with `unix://` keys; or a
            function from a key to an endpoint, or to None for a worker that publishes nothing.
        discover: Ask workers that `endpoints` does not name for their endpoints: `GET /kv_event_sources`, which vLLM
            has at least since 0.32; needs the extra `http`. A worker without that page is assumed to
            publish at the default ports.
        relay: Address of a `cachelb_gateway.relay.Relay`, which has the streams of workers that `endpoints` lacks.
        secret: That of the relay, if it has one; by default that of `CACHELB_SECRET` in the environment.
        topic_filter: Only topics that begin with this are received; empty is all.
        rcvhwm: Messages kept for one worker while the thread is busy; beyond, the engine keeps or drops them.
        replay_timeout_s: Seconds an engine has to send the next batch of a replay.

    Raises:
        ModuleNotFoundError: pyzmq is not installed, or aiohttp for `discover`.
        TypeError: An argument is of another type.
        ValueError: An argument is out of range.

    Example:
        >>> from cachelb import Router
        >>> from cachelb.events import ZmqSource
        >>> with Router(policy="kv-aware") as router:
        ...     router.attach(ZmqSource(replay_port=5657))  # router.close() stops it
    """

    def __post_init__(self, secret: str | Sequence[str] | None) -> None:
        """Check the options."""
        need("ZmqSource", "zmq")
        super().__post_init__(secret)
        self._runs: Runs[Subscriber] = Runs()

    def start(self, router: KvSink, /) -> None:
        """Start receiving.

        Args:
            router: The router to feed; its workers are followed.

        Raises:
            RuntimeError: The source is running already; one source feeds one router.
        """
        from cachelb.events.zmq.subscriber import Subscriber

        self._runs.claim(self)
        self._runs.latest = Subscriber(self, router)
        self._runs.latest.start()

    def stop(self) -> None:
        """Stop receiving: close every socket and wait for the thread. Idempotent."""
        self._runs.stop()

    def stats(self) -> ZmqSourceStats:
        """Return the counters of the source.

        Returns:
            Counters since the start; all zero before it.
        """
        run = self._runs.latest
        return ZmqSourceStats(0, 0, {}) if run is None else run.stats()
