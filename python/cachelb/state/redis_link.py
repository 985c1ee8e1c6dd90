"""Two connections to a Redis server: one waits for what is new, the other writes without waiting for answers."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, cast
from urllib.parse import urlsplit

from redis.backoff import NoBackoff
from redis.connection import Connection, parse_url
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from socket import socket as Socket  # noqa: N812 - a class

    Word: TypeAlias = bytes | str | int
    Command: TypeAlias = Sequence[Word]

_log = logging.getLogger("cachelb.state")

_SCHEMES: Final = ("redis://", "rediss://", "unix://")
_TIMEOUT_S: Final = 1.0
_MOST_BYTES: Final = 32 << 20
"""Bytes of one answer of the server. One read of a fleet's own entries has some megabytes at most."""


class RefusedCommandError(ConnectionError):
    """The server works but refuses: read-only, out of memory, no permission."""


class FloodError(ConnectionError):
    """An answer is longer than a fleet's own entries can make it."""


class _Meter:
    """A socket that limits the bytes of an answer: redis-py reads any answer as a whole."""

    def __init__(self, socket: Socket) -> None:
        self._socket = socket
        self.left = _MOST_BYTES

    def recv(self, size: int) -> bytes:
        found = self._socket.recv(size)
        self._count(len(found))
        return found

    def recv_into(self, buffer: bytearray) -> int:  # hiredis
        found = self._socket.recv_into(buffer)
        self._count(found)
        return found

    def _count(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise OSError(f"an answer has more than {_MOST_BYTES >> 20} MB")

    def __getattr__(self, name: str) -> object:
        return getattr(self._socket, name)


class _Wire(Protocol):
    """The used part of a redis-py connection, which is only partly typed."""

    _sock: Any

    def connect(self) -> None: ...

    def disconnect(self) -> None: ...

    def can_read(self, timeout: float) -> bool: ...

    def read_response(self) -> object: ...

    def on_connect(self) -> None: ...

    def pack_command(self, *words: Word) -> list[bytes]: ...

    def pack_commands(self, commands: Sequence[Command]) -> list[bytes]: ...

    def send_packed_command(self, command: list[bytes], check_health: bool) -> None: ...  # noqa: FBT001 - theirs


class RedisLink:
    """Talks to one server. The password of its url is never shown."""

    def __init__(self, url: str) -> None:
        options, self.shown = _options(url)
        self._meters: dict[_Wire, _Meter] = {}
        make = cast("Callable[..., _Wire]", options.pop("connection_class", Connection))
        options |= {
            "protocol": 2,
            "socket_timeout": _TIMEOUT_S,
            "socket_connect_timeout": _TIMEOUT_S,
            "retry": Retry(NoBackoff(), 0),
            "health_check_interval": 0,
            "decode_responses": False,
            "redis_connect_func": self._metered,
        }
        try:
            self._reading, self._writing = (make(**options) for _ in range(2))
        except TypeError:
            names = ", ".join(sorted(name for name in options if name in urlsplit(url).query)) or "?"
            raise ValueError(f"url has an option behind ? that redis-py does not know, among {names}") from None
        except RedisError as error:
            raise ValueError(f"url cannot be used: {error}") from None

    def open(self) -> None:
        """Reconnect."""
        self.close()
        with self._errors_named():
            self._reading.connect()
            self._writing.connect()

    def _metered(self, connection: _Wire) -> None:
        """Meter a new connection; its parser gets the socket next."""
        self._meters[connection] = connection._sock = _Meter(connection._sock)  # noqa: SLF001 - there is no other way in
        connection.on_connect()

    def _answer(self, connection: _Wire) -> object:
        self._meters[connection].left = _MOST_BYTES
        return connection.read_response()

    def close(self) -> None:
        """Close both connections. Idempotent."""
        for connection in (self._reading, self._writing):
            try:
                connection.disconnect()
            except (RedisError, OSError) as error:  # a broken connection may fail even on close
                _log.debug("%s: %s", self.shown, error)

    def call(self, *words: Word) -> object:
        """Run a command and wait for its answer; only while no other is in progress."""
        with self._errors_named():
            self._writing.send_packed_command(self._writing.pack_command(*words), check_health=False)
            return self._answer(self._writing)

    def send(self, commands: Sequence[Command]) -> None:
        """Send commands; `answer` returns their results in this order."""
        with self._errors_named():
            self._writing.send_packed_command(self._writing.pack_commands(commands), check_health=False)

    def answered(self) -> bool:
        """Return whether there is an answer."""
        with self._errors_named():
            return self._writing.can_read(0)

    def answer(self) -> object:
        """Return the next answer."""
        with self._errors_named():
            return self._answer(self._writing)

    def wait_for(self, *words: Word) -> None:
        """Send a command whose answer may take long."""
        with self._errors_named():
            self._reading.send_packed_command(self._reading.pack_command(*words), check_health=False)

    def waited(self, timeout_s: float) -> bool:
        """Return whether its answer arrived within a time."""
        with self._errors_named():
            return self._reading.can_read(timeout_s)

    def found(self) -> object:
        """Return it."""
        with self._errors_named():
            return self._answer(self._reading)

    @contextmanager
    def _errors_named(self) -> Iterator[None]:
        """Convert errors of redis-py to those of a carrier."""
        try:
            yield
        except ResponseError as error:
            raise RefusedCommandError(f"{self.shown} refuses: {error}") from error
        except (RedisError, OSError) as error:
            if any(meter.left < 0 for meter in self._meters.values()):
                raise FloodError(f"{self.shown}: {error}") from error
            raise ConnectionError(f"{self.shown}: {error}") from error


def _options(url: str) -> tuple[dict[str, object], str]:
    """Read a url. Returns redis-py's options, and the url to show. Errors do not repeat it: it may hold a password."""
    scheme = next((scheme for scheme in _SCHEMES if url.startswith(scheme)), None)
    if scheme is None:
        before, found, _ = url.partition("://")
        what = f"{before + found!r}" if found and before.isalnum() else "something else"
        raise ValueError(f"url must begin with redis://, rediss:// or unix://, got {what}")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or 6379
    except ValueError:
        raise ValueError(
            "url cannot be read: it must look like redis://user:password@host:6379/0, with characters such as "
            "/ # ? @ of a password written as %2F %23 %3F %40"
        ) from None
    database = parts.path.strip("/")
    if scheme != "unix://" and database and not database.isdecimal():
        raise ValueError("url must end in the number of a database, such as /0")
    if scheme == "unix://" and not parts.path:
        raise ValueError("url must name a socket, such as unix:///run/redis/redis.sock")
    try:
        options = cast("dict[str, object]", parse_url(url))  # type: ignore[no-untyped-call]
    except ValueError as error:
        raise ValueError(f"url cannot be used: {error}") from None
    if scheme == "unix://":
        shown = f"unix://{parts.path}"
    else:
        shown = f"{scheme}{host or 'localhost'}:{port}/{options.get('db', 0)}"
    return options, shown
