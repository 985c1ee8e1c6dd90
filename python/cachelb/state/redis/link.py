"""Two connections to a Redis server: one waits for what is new, the other writes without waiting for answers."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from socket import socket as Socket  # noqa: N812 - a class
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast
from urllib.parse import urlsplit

from redis.backoff import NoBackoff
from redis.connection import Connection, DefaultParser, parse_url
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Word: TypeAlias = bytes | str | int
    Command: TypeAlias = Sequence[Word]
    Wire: TypeAlias = Any  # a connection of redis-py, which is only partly typed

_log = logging.getLogger("cachelb.state")

_SCHEMES: Final = ("redis://", "rediss://", "unix://")
_TIMEOUT_S: Final = 1.0
_MOST_BYTES: Final = 32 << 20
"""Bytes of one answer of the server. One read of a fleet's own entries has some megabytes at most."""


class RefusedCommandError(ConnectionError):
    """The server works but refuses: read-only, out of memory, no permission."""


class FloodError(ConnectionError):
    """An answer is longer than a fleet's own entries can make it."""


class _View:
    """A socket that counts the bytes of answers, or a connection with such a socket."""

    def __init__(self, of: Wire | Socket, count: Callable[[int], None]) -> None:
        self._of = of
        self._count = count

    def recv(self, *size: int) -> bytes:
        found: bytes = self._of.recv(*size)
        self._count(len(found))
        return found

    def recv_into(self, buffer: bytearray) -> int:  # hiredis
        found: int = self._of.recv_into(buffer)
        self._count(found)
        return found

    def __getattr__(self, name: str) -> object:
        value = getattr(self._of, name)
        return _View(value, self._count) if isinstance(value, Socket) else value


class RedisLink:
    """Talks to one server. The password of its url is never shown."""

    def __init__(self, url: str) -> None:
        options, self.shown = _options(url)
        self._left = _MOST_BYTES
        make = cast("Callable[..., Wire]", options.pop("connection_class", Connection))
        options |= {
            "protocol": 2,
            "socket_timeout": _TIMEOUT_S,
            "socket_connect_timeout": _TIMEOUT_S,
            "retry": Retry(NoBackoff(), 0),
            "health_check_interval": 0,
            "decode_responses": False,
            "parser_class": self._parser,
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
        self._left = _MOST_BYTES
        with self._errors_named():
            self._reading.connect()
            self._writing.connect()

    def _parser(self, **options: Any) -> Any:  # noqa: ANN401 - theirs
        """Make redis-py's parser, which reads any answer as a whole from the socket that its connection has."""
        parser: Any = DefaultParser(**options)
        begin = parser.on_connect
        parser.on_connect = lambda connection: begin(_View(connection, self._count))
        return parser

    def _count(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise OSError(f"an answer has more than {_MOST_BYTES >> 20} MB")

    def _answer(self, connection: Wire) -> object:
        self._left = _MOST_BYTES
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
            return bool(self._writing.can_read(0))

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
            return bool(self._reading.can_read(timeout_s))

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
            if self._left < 0:
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
