"""Checks of the options of source and relay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cachelb._core import worker_name
from cachelb.common.arguments import require, seconds, whole
from cachelb.common.extras import need
from cachelb.common.secret import read
from cachelb.events.endpoints import Endpoint, check_port

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cachelb.events.fleet import FleetSettings
    from cachelb.events.zmq.sockets import Keys

_PORTS = 65_535  # the port above it is used too


def bind_address(value: str, *, like: str) -> str:
    """Check an address for two sockets, at the port and the one above; `*` stands for any free port."""
    require("bind", value, str, "text")
    scheme, _, rest = value.partition("://")
    host, _, port = rest.rpartition(":")
    # ZeroMQ reads 99999 as 34463.
    is_port = port == "*" or (port.isascii() and port.isdecimal() and 1 <= int(port) < _PORTS)
    if scheme != "tcp" or not host or not is_port:
        raise ValueError(f"bind must be an address like {like}, with a port up to {_PORTS - 1} or *, got {value!r}")
    return value


def fleet_settings(
    *,
    default_port: int,
    replay_port: int | None,
    endpoints: Mapping[str, Endpoint] | Callable[[str], Endpoint | None] | None,
    discover: bool,
    relay: str | None,
    topic_filter: str,
    rcvhwm: int,
    replay_timeout_s: float,
    secret: str | Sequence[str] | None = None,
) -> FleetSettings:
    """Check a subscription; the arguments are those of `ZmqSource`."""
    from cachelb.events.fleet import FleetSettings
    from cachelb.events.zmq.relayed import relay_endpoint
    from cachelb.events.zmq.stream import StreamSettings

    check_port("default_port", default_port)
    if replay_port is not None:
        check_port("replay_port", replay_port)
    require("discover", discover, bool, "True or False")
    if discover and callable(endpoints):
        raise ValueError("discover is of no use beside a function that knows every endpoint; give one of them")
    if discover:
        need("discover=True", "aiohttp")
    require("topic_filter", topic_filter, str, "text")
    high_water_mark("rcvhwm", rcvhwm)
    if relay is not None:
        require("relay", relay, str, "an address like tcp://10.0.0.2:7800")
        for name, value in (("discover", discover), ("replay_port", replay_port), ("topic_filter", topic_filter)):
            if value:
                raise ValueError(f"{name} is of no use beside relay: give it to the relay")
        if callable(endpoints):
            raise ValueError("relay is of no use beside a function that knows every endpoint; give one of them")
    elif secret is not None:
        raise ValueError("secret is of no use without relay: engines have none")
    keys = None if relay is None else relay_keys(secret)
    return FleetSettings(
        stream=StreamSettings(topic_filter.encode(), rcvhwm, seconds("replay_timeout_s", replay_timeout_s), keys),
        port=default_port,
        replay_port=replay_port,
        endpoints=_checked(endpoints),
        discover=discover,
        relay=None if relay is None else relay_endpoint(relay),
    )


def relay_keys(secret: str | Sequence[str] | None) -> Keys | None:
    """Make the keys that a relay and the gateways behind it share, None for a relay open to all peers.

    If there are several secrets, the first counts; None stands for that of the environment, if it has one.
    """
    from cachelb.events.zmq.sockets import curve_keys

    secrets = read(secret)
    return curve_keys(secrets[0].key("relay")) if secrets else None


def high_water_mark(name: str, value: int) -> None:
    """Refuse anything but a number of messages."""
    whole(name, value, 1)


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
