"""Two connections to a Redis server: one waits for what is new, the other writes without waiting for answers."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, cast
from urllib.parse import urlsplit

from redis.backoff import NoBackoff
from redis.connection import Connection, parse_url
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Word: TypeAlias = bytes | str | int
    Command: TypeAlias = Sequence[Word]

_log = logging.getLogger("cachelb.state")

_SCHEMES: Final = ("redis://", "rediss://", "unix://")
_TIMEOUT_S: Final = 1.0


class RefusedCommandError(ConnectionError):
    """The server works but refuses: read-only, out of memory, no permission."""


class _Wire(Protocol):
    """What is used of a connection of redis-py, which is typed in part."""

    def connect(self) -> None: ...

    def disconnect(self) -> None: ...

    def can_read(self, timeout: float) -> bool: ...

    def read_response(self) -> object: ...

    def pack_command(self, *words: Word) -> list[bytes]: ...

    def pack_commands(self, commands: Sequence[Command]) -> list[bytes]: ...

    def send_packed_command(self, command: list[bytes], check_health: bool) -> None: ...  # noqa: FBT001 - theirs


class RedisLink:
    """Talks to one server.

    Args:
        url: Where and as whom; its password shows nowhere.

    Raises:
        ValueError: The url cannot be used.
    """

    def __init__(self, url: str) -> None:
        options, self.shown = _options(url)
        make = cast("Callable[..., _Wire]", options.pop("connection_class", Connection))
        options |= {
            "protocol": 2,
            "socket_timeout": _TIMEOUT_S,
            "socket_connect_timeout": _TIMEOUT_S,
            "retry": Retry(NoBackoff(), 0),
            "health_check_interval": 0,
            "decode_responses": False,
        }
        try:
            self._reading, self._writing = (make(**options) for _ in range(2))
        except TypeError:
            names = ", ".join(sorted(name for name in options if name in urlsplit(url).query)) or "?"
            raise ValueError(f"url has an option behind ? that redis-py does not know, among {names}") from None
        except RedisError as error:
            raise ValueError(f"url cannot be used: {error}") from None

    def open(self) -> None:
        """Connect anew.

        Raises:
            ConnectionError: It does not work; the text says why.
        """
        self.close()
        with self._told():
            self._reading.connect()
            self._writing.connect()

    def close(self) -> None:
        """End both connections; idempotent."""
        for connection in (self._reading, self._writing):
            try:
                connection.disconnect()
            except (RedisError, OSError) as error:  # a broken connection may fail even at its end
                _log.debug("%s: %s", self.shown, error)

    def call(self, *words: Word) -> object:
        """Run a command and wait for its answer; only while no other is under way."""
        with self._told():
            self._writing.send_packed_command(self._writing.pack_command(*words), check_health=False)
            return self._writing.read_response()

    def send(self, commands: Sequence[Command]) -> None:
        """Run commands; `answer` has what becomes of each, in this order."""
        with self._told():
            self._writing.send_packed_command(self._writing.pack_commands(commands), check_health=False)

    def answered(self) -> bool:
        """Say whether there is an answer."""
        with self._told():
            return self._writing.can_read(0)

    def answer(self) -> object:
        """Return the next answer."""
        with self._told():
            return self._writing.read_response()

    def wait_for(self, *words: Word) -> None:
        """Run a command whose answer may take long."""
        with self._told():
            self._reading.send_packed_command(self._reading.pack_command(*words), check_health=False)

    def waited(self, timeout_s: float) -> bool:
        """Say whether its answer arrived within a time."""
        with self._told():
            return self._reading.can_read(timeout_s)

    def found(self) -> object:
        """Return it."""
        with self._told():
            return self._reading.read_response()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn errors of redis-py into those of a carrier."""
        try:
            yield
        except ResponseError as error:
            raise RefusedCommandError(f"{self.shown} refuses: {error}") from error
        except (RedisError, OSError) as error:
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
