"""The source of KV cache events."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cachelb.events.endpoints import DEFAULT_PORT, Endpoint, check_port
from cachelb.events.stats import ZmqSourceStats

if TYPE_CHECKING:
    from collections.abc import Callable

    from cachelb.events.sink import KvSink
    from cachelb.events.subscriber import Subscriber


class ZmqSource:
    """Subscribes to the KV cache events of every worker and keeps the router's index true to them.

    One thread serves all workers and follows those of the router. It subscribes, asks the engine's replay socket for
    what was published before, and again whenever a message is missing. A worker that is slow or dead delays only
    itself. Without a replay socket a missed message costs all that is known of the worker: name one.

    Engines publish at a fixed port of their host unless `endpoints` says otherwise; vLLM needs
    `--kv-events-config '{"enable_kv_cache_events": true, "replay_endpoint": "tcp://*:5657"}'` for `replay_port=5657`.
    Rank r of a worker with data-parallel ranks publishes r ports higher. Needs `pip install 'cachelb[events]'`.

    Args:
        default_port: Port of the event socket on a worker's host.
        replay_port: Port of the replay socket there; None if the engines have none.
        endpoints: Endpoints by worker key, for workers that are elsewhere, such as those with `unix://` keys; or a
            function from a key to an endpoint, or to None for a worker that publishes nothing.
        discover: Ask workers that `endpoints` does not name where they publish: `GET /kv_event_sources`, which vLLM has
            at least since 0.32. One that does not know the page is taken to publish at the ports.
        topic_filter: Only topics that begin with this are received; empty is all.
        rcvhwm: Messages kept for one worker while the thread is busy; beyond, the engine keeps or drops them.
        replay_timeout_s: Seconds an engine has to send the next batch of a replay.

    Raises:
        ModuleNotFoundError: pyzmq is not installed.
        TypeError: An argument is of another type.
        ValueError: An argument is out of range.

    Example:
        >>> from cachelb import Router
        >>> from cachelb.events import ZmqSource
        >>> with Router(policy="kv-aware") as router:
        ...     router.attach(ZmqSource(replay_port=5657))  # router.close() stops it
    """

    def __init__(
        self,
        *,
        default_port: int = DEFAULT_PORT,
        replay_port: int | None = None,
        endpoints: Mapping[str, Endpoint] | Callable[[str], Endpoint | None] | None = None,
        discover: bool = False,
        topic_filter: str = "",
        rcvhwm: int = 10_000,
        replay_timeout_s: float = 5.0,
    ) -> None:
        try:
            importlib.import_module("zmq")
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("ZmqSource needs pyzmq: pip install 'cachelb[events]'", name="zmq") from error
        from cachelb.events.fleet import FleetSettings
        from cachelb.events.stream import StreamSettings

        check_port("default_port", default_port)
        if replay_port is not None:
            check_port("replay_port", replay_port)
        if not isinstance(discover, bool):
            raise TypeError(f"discover must be True or False, got {type(discover).__name__}")
        if discover and callable(endpoints):
            raise ValueError("discover is of no use beside a function that knows every endpoint; give one of them")
        _require("topic_filter", topic_filter, str, "text")
        _require("rcvhwm", rcvhwm, int, "a whole number")
        if not 1 <= rcvhwm < 1 << 31:
            raise ValueError(f"rcvhwm must be from 1 to 2147483647, got {rcvhwm}")
        _require("replay_timeout_s", replay_timeout_s, (int, float), "a number of seconds")
        if not 0.0 < replay_timeout_s < float("inf"):
            raise ValueError(f"replay_timeout_s must be a number above 0, got {replay_timeout_s}")
        self._settings = FleetSettings(
            stream=StreamSettings(topic_filter.encode(), rcvhwm, replay_timeout_s),
            port=default_port,
            replay_port=replay_port,
            endpoints=_checked(endpoints),
            discover=discover,
        )
        self._run: Subscriber | None = None
        self._abandoned: list[Subscriber] = []

    def start(self, router: KvSink, /) -> None:
        """Begin to receive.

        Args:
            router: What to feed; its workers are followed.

        Raises:
            RuntimeError: The source is running already; one source feeds one router.
        """
        from cachelb.events.subscriber import Subscriber

        if self._run is not None and self._run.pid == os.getpid():
            raise RuntimeError("this source is attached already: make one ZmqSource per router")
        if self._run is not None:
            # After a fork: the parent's sockets are kept unused, since collecting them would close them.
            self._abandoned.append(self._run)
        self._run = Subscriber(self._settings, router)
        self._run.start()

    def stop(self) -> None:
        """End receiving: close every socket and wait for the thread. Idempotent."""
        run, self._run = self._run, None
        if run is not None and run.pid == os.getpid():
            run.stop()

    def stats(self) -> ZmqSourceStats:
        """Return how receiving goes.

        Returns:
            Counters since the start; all zero before it.
        """
        return ZmqSourceStats(0, 0, {}) if self._run is None else self._run.stats()


def _checked(
    endpoints: Mapping[str, Endpoint] | Callable[[str], Endpoint | None] | None,
) -> Mapping[str, Endpoint] | Callable[[str], Endpoint | None]:
    """Refuse what is neither a function nor endpoints by key."""
    if endpoints is None:
        return {}
    if callable(endpoints):
        return endpoints
    _require("endpoints", endpoints, Mapping, "a mapping or a function")
    for key, endpoint in endpoints.items():
        _require("a key of endpoints", key, str, "a worker's key")
        _require(f"the endpoint of {key!r}", endpoint, Endpoint, "an Endpoint")
    return dict(endpoints)


def _require(name: str, value: object, kind: type | tuple[type, ...], words: str) -> None:
    """Refuse an argument of another type."""
    if isinstance(value, bool) or not isinstance(value, kind):
        raise TypeError(f"{name} must be {words}, got {type(value).__name__}")
