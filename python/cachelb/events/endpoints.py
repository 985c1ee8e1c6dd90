"""Endpoints of event streams."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from cachelb.common.arguments import require, whole

DEFAULT_PORT = 5557
_PORTS = range(1, 65_536)
_TCP = re.compile(r"tcp://(?P<host>\[[^\[\]/]+\]|[^:/\[\]]+):(?P<port>\d{1,5})")
_PAIR = re.compile(
    r"tcp://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?\]|\*):(?P<port>[1-9]\d{0,4}|\*)", re.ASCII
)
_ANY_HOST = ("*", "0.0.0.0", "[::]")  # noqa: S104 - recognised, not bound by default


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The sockets at which one worker publishes KV cache events.

    Rank r of a worker with data-parallel ranks has both ports r higher, as in engines.

    Args:
        address: The event socket: `tcp://host:port` or `ipc:///path`.
        replay: The replay socket, which serves missed batches; None if the engine has none.
        bind: The engine connects to `address`, so the source listens there: `tcp://*:5557`. vLLM does so when its
            endpoint names neither `*` nor `::` and is not `ipc://`. The replay socket is always the engine's own.

    Raises:
        TypeError: A value has the wrong type.
        ValueError: An address has another form.

    Example:
        >>> from cachelb.events import Endpoint
        >>> Endpoint("tcp://gpu0:5557", replay="tcp://gpu0:5657").of_rank(2)
        Endpoint(address='tcp://gpu0:5559', replay='tcp://gpu0:5659', bind=False)
    """

    address: str
    replay: str | None = None
    bind: bool = False

    def __post_init__(self) -> None:
        _check_address("address", self.address, any_host=self.bind)
        if self.replay is not None:
            _check_address("replay", self.replay, any_host=False)
        require("bind", self.bind, bool, "True or False")

    def of_rank(self, rank: int) -> Endpoint:
        """Return the endpoint of a data-parallel rank.

        Args:
            rank: The rank; 0 is this endpoint itself.

        Returns:
            Its endpoint.

        Raises:
            ValueError: The addresses have no ports to increment.
        """
        if whole("rank", rank, 0, len(_PORTS)) == 0:
            return self
        return replace(self, address=_of_rank(self.address, rank), replay=self.replay and _of_rank(self.replay, rank))


def worker_host(key: str) -> str:
    """Return the host of a worker as a ZeroMQ address has it: an IPv6 address in brackets.

    The error for a key without a host does not repeat the key, which may hold a password.

    Example:
        >>> from cachelb.events.endpoints import worker_host
        >>> worker_host("http://user:secret@gpu0:8000/v1"), worker_host("http://[::1]:8000")
        ('gpu0', '[::1]')
    """
    try:
        parts = urlsplit(key if "://" in key else f"http://{key}")
        scheme, host, port = parts.scheme, parts.hostname, parts.port
    except ValueError:
        scheme, host, port = "", None, None
    if not host or scheme not in ("http", "https") or ("://" not in key and port is None):
        raise ValueError("its key is no http URL; name its endpoint: ZmqSource(endpoints={key: Endpoint(...)})")
    return f"[{host}]" if ":" in host else host


def default_endpoint(key: str, port: int, replay_port: int | None) -> Endpoint:
    """Return where engines publish by default: a fixed port of the worker's host."""
    host = worker_host(key)
    return Endpoint(f"tcp://{host}:{port}", None if replay_port is None else f"tcp://{host}:{replay_port}")


def check_port(name: str, port: object) -> None:
    """Refuse anything but a TCP port."""
    require(name, port, int, "a port number")
    if port not in _PORTS:
        raise ValueError(f"{name} must be from {_PORTS[0]} to {_PORTS[-1]}, got {port}")


def pair_address(name: str, value: str, like: str, *, listens: bool = False) -> str:
    """Check the address of two sockets, of which the second is at the port above; any host and port for listeners."""
    require(name, value, str, "text")
    found = _PAIR.fullmatch(value)  # ZeroMQ reads port 99999 as 34463
    is_any = "*" in value
    if found is None or (is_any and not listens) or (found["port"] != "*" and int(found["port"]) >= _PORTS[-1]):
        ports = f", with a port up to {_PORTS[-2]} or *" if listens else ""
        raise ValueError(f"{name} must be an address like {like}{ports}, got {value!r}")
    return value


def _check_address(name: str, address: str, *, any_host: bool) -> None:
    require(name, address, str, "text such as 'tcp://gpu0:5557'")
    if address.startswith("ipc://") and len(address) > len("ipc://"):
        return
    match = _TCP.fullmatch(address)
    if match is None or int(match["port"]) not in _PORTS:
        raise ValueError(f"{name} must be tcp://host:port or ipc:///path, got {address!r}")
    if match["host"] in _ANY_HOST and not any_host:
        raise ValueError(f"{name} must name the engine's host, got {address!r}; with bind=True it is where to listen")


def _of_rank(address: str, rank: int) -> str:
    match = _TCP.fullmatch(address)
    if match is None:
        raise ValueError(f"rank {rank} has no address: {address!r} has no port to count up; use tcp://")
    port = int(match["port"]) + rank
    if port not in _PORTS:
        raise ValueError(f"rank {rank} has no address: its port would be {port}")
    return f"tcp://{match['host']}:{port}"
