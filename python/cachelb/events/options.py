"""Checks of the options of source and relay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass
from typing import TYPE_CHECKING

from cachelb._core import worker_name
from cachelb.common.arguments import require, seconds, whole
from cachelb.common.extras import need
from cachelb.common.secret import read
from cachelb.events.endpoints import DEFAULT_PORT, Endpoint, check_port, default_endpoint
from cachelb.events.zmq.relayed import RelayEndpoint, relay_endpoint

if TYPE_CHECKING:
    from cachelb.events.zmq.sockets import Keys


@dataclass(kw_only=True, eq=False, repr=False)
class FleetSettings:
    """The streams to subscribe to; the options of `ZmqSource`."""

    default_port: int = DEFAULT_PORT
    replay_port: int | None = None
    endpoints: Mapping[str, Endpoint] | Callable[[str], Endpoint | None] | None = None
    discover: bool = False
    relay: str | None = None
    secret: InitVar[str | Sequence[str] | None] = None
    topic_filter: str = ""
    rcvhwm: int = 10_000
    replay_timeout_s: float = 5.0

    def __post_init__(self, secret: str | Sequence[str] | None) -> None:
        """Check the options."""
        endpoints, relay = self.endpoints, self.relay
        check_port("default_port", self.default_port)
        if self.replay_port is not None:
            check_port("replay_port", self.replay_port)
        require("discover", self.discover, bool, "True or False")
        if self.discover and callable(endpoints):
            raise ValueError("discover is of no use beside a function that knows every endpoint; give one of them")
        if self.discover:
            need("discover=True", "aiohttp")
        require("topic_filter", self.topic_filter, str, "text")
        whole("rcvhwm", self.rcvhwm, 1)
        if relay is not None:
            require("relay", relay, str, "an address like tcp://10.0.0.2:7800")
            for name in ("discover", "replay_port", "topic_filter"):
                if getattr(self, name):
                    raise ValueError(f"{name} is of no use beside relay: give it to the relay")
            if callable(endpoints):
                raise ValueError("relay is of no use beside a function that knows every endpoint; give one of them")
        elif secret is not None:
            raise ValueError("secret is of no use without relay: engines have none")
        self.replay_timeout_s = seconds("replay_timeout_s", self.replay_timeout_s)
        self.relay_keys = None if relay is None else relay_keys(secret)
        self._relay = None if relay is None else relay_endpoint(relay)
        # None for a worker that publishes nothing; a mapping leaves the workers that it does not name to the ports
        self._known = _checked(endpoints)

    def asks(self, key: str) -> bool:
        """Return whether a worker is asked for its endpoint: not if the user configured one."""
        return self.discover and not callable(self._known) and key not in self._known

    def endpoint(self, key: str) -> Endpoint | RelayEndpoint | None:
        """Return where a worker publishes unless it is asked, None if it publishes nothing."""
        if callable(self._known):
            found = self._known(key)
            if found is not None and not isinstance(found, Endpoint):
                raise TypeError(f"endpoints() must return an Endpoint or None, got {type(found).__name__}")
            return found
        return self._known.get(key) or self._relay or default_endpoint(key, self.default_port, self.replay_port)


def relay_keys(secret: str | Sequence[str] | None) -> Keys | None:
    """Make the keys that a relay and the gateways behind it share, None for a relay open to all peers.

    If there are several secrets, the first counts; None stands for that of the environment, if it has one.
    """
    from cachelb.events.zmq.sockets import curve_keys

    secrets = read(secret)
    return curve_keys(secrets[0].key("relay")) if secrets else None


def _checked(
    endpoints: Mapping[str, Endpoint] | Callable[[str], Endpoint | None] | None,
) -> Mapping[str, Endpoint] | Callable[[str], Endpoint | None]:
    """Refuse anything but a function or endpoints by key."""
    if endpoints is None:
        return {}
    if callable(endpoints):
        return endpoints
    require("endpoints", endpoints, Mapping, "a mapping or a function")
    for key, endpoint in endpoints.items():
        require("a key of endpoints", key, str, "a worker's key")
        require(f"the endpoint of {worker_name(key)!r}", endpoint, Endpoint, "an Endpoint")
    return {worker_name(key): endpoint for key, endpoint in endpoints.items()}
