"""Addresses that are served, TCP or unix sockets, with TLS or without."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import stat
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cachelb.arguments import whole
from cachelb.extras import need

if TYPE_CHECKING:
    from collections.abc import Iterator

    import uvicorn

    from cachelb.serve.asgi import Application, Receive, Scope, Send

_BACKLOG: Final = 2048
_KEEPALIVE_S: Final = 75
_LOOPBACK: Final = frozenset({"localhost", "::1"})


class Listener:
    """A socket, and the server on it.

    Example:
        >>> from cachelb.serve import Listener
        >>> listener = Listener(None, "127.0.0.1:0")
        >>> listener.url.startswith("http://127.0.0.1:"), listener.is_local
        (True, True)
        >>> listener.close()
    """

    def __init__(
        self,
        app: Application | None,
        address: str,
        *,
        certificate: str | Path | None = None,
        key: str | Path | None = None,
        max_connections: int = 16_384,
    ) -> None:
        """Bind the socket; clients wait until `serve`.

        Args:
            app: The application; None is for addresses that are only bound.
            address: `host:port`, port 0 for any that is free, or `unix:/path`.
            certificate: Chain of certificates in PEM, for TLS.
            key: Its private key in PEM; None if it is in the same file.
            max_connections: Connections at a time; more are closed.

        Raises:
            ModuleNotFoundError: The extra `cachelb[serve]` is not installed.
            OSError: The address cannot be bound, or a file cannot be read.
            TypeError: An argument has the wrong type.
            ValueError: An argument is out of range, or the address has another form.
        """
        need("cachelb.serve", "uvicorn", "httptools", "uvloop")
        whole("max_connections", max_connections, 1)
        if key is not None and certificate is None:
            raise ValueError("key needs a certificate")
        self._config = _config(app, certificate, key, max_connections)
        self._server: uvicorn.Server | None = None
        self._path: Path | None = None
        if address.startswith("unix:"):
            self._path = Path("/" + address.removeprefix("unix:").lstrip("/"))
            self._socket = _bind_unix(self._path)
            self.url, self.is_local = f"unix://{self._path}", True
            return
        host, port = split_address(address)
        self._socket = _bind(host, port)
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{'https' if certificate else 'http'}://{shown}:{self._socket.getsockname()[1]}"
        self.is_local = is_loopback(host)

    async def serve(self) -> None:
        """Serve until `stop`, then until every open request has ended."""
        self._server = _make_server(self._config)
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            self.close()

    def stop(self, *, force: bool = False) -> None:
        """Accept nothing more, and let `serve` end.

        Args:
            force: Do not wait for open requests.
        """
        if self._server is not None:
            self._server.should_exit = True
            self._server.force_exit = self._server.force_exit or force

    def close(self) -> None:
        """Release the address. Idempotent."""
        self._socket.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None


def split_address(address: str) -> tuple[str, int]:
    """Split `host:port`; anything else is a ValueError.

    Example:
        >>> split_address("[::1]:8080"), split_address("0.0.0.0:80")
        (('::1', 8080), ('0.0.0.0', 80))
    """
    host, found, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if not found or not host or not port.isdecimal() or int(port) > 65_535 or ("[" not in address and ":" in host):  # noqa: PLR2004 - the largest port
        raise ValueError(f"{address!r} is no address: host:port, such as 127.0.0.1:8080, or unix:/path")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a host's addresses."""
    return host in _LOOPBACK or host.startswith("127.")


def _config(
    app: Application | None, certificate: str | Path | None, key: str | Path | None, max_connections: int
) -> uvicorn.Config:
    import uvicorn

    from cachelb.serve.protocol import BoundedProtocol

    config = uvicorn.Config(
        app or _nothing,
        http=partial(BoundedProtocol, most_connections=max_connections),  # type: ignore[arg-type]  # called, no more
        ws="none",
        lifespan="off",
        interface="asgi3",
        access_log=False,
        log_config=None,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=_KEEPALIVE_S,
        backlog=_BACKLOG,
        ssl_certfile=None if certificate is None else str(certificate),
        ssl_keyfile=None if key is None else str(key),
    )
    config.load()
    return config


async def _nothing(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise RuntimeError("no application was given")


def _make_server(config: uvicorn.Config) -> uvicorn.Server:
    import uvicorn

    class Server(uvicorn.Server):
        """Leaves signals to the command, which has several servers."""

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    return Server(config)


def quiet_server() -> None:
    """Log warnings of the server only, without those of answers that are torn on purpose."""
    logger = logging.getLogger("uvicorn.error")
    logger.setLevel(logging.WARNING)
    logger.addFilter(_is_unexpected)


def _is_unexpected(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("ASGI callable returned without")


def _bind(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(where)
        bound.listen(_BACKLOG)
        bound.setblocking(False)  # noqa: FBT003 - its only argument
    except OSError as error:
        bound.close()
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}") from None
    return bound


def _bind_unix(path: Path) -> socket.socket:
    """Bind a unix socket, in place of one that a killed process left."""
    bound = socket.socket(socket.AF_UNIX)
    try:
        if path.exists() and stat.S_ISSOCK(path.stat().st_mode) and _is_dead(path):
            path.unlink()
        bound.bind(str(path))
        bound.listen(_BACKLOG)
        bound.setblocking(False)  # noqa: FBT003 - its only argument
    except OSError as error:
        bound.close()
        raise OSError(error.errno, f"cannot listen on unix:{path}: {error.strerror or error}") from None
    return bound


def _is_dead(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == errno.ECONNREFUSED
