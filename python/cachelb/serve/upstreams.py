"""HTTP clients of the workers."""

from __future__ import annotations

import asyncio
import base64
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from cachelb._core import worker_name
from cachelb.arguments import seconds
from cachelb.extras import need

if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Self

    import aiohttp

    from cachelb.router import Router

_KEEPALIVE_S: Final = 4.0
"""Less than the 5 s after which engines, on uvicorn, close idle connections: a request must not meet the close."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where the requests of a worker go."""

    session: aiohttp.ClientSession
    base: str  # its URLs begin with this
    authorization: str | None = field(repr=False)  # of the user and password in its URL


def read_address(worker: str) -> tuple[str, str, str | None]:
    """Split a worker's URL into where its URLs begin, its socket's path if it has one, and an `Authorization`.

    Anything else is a ValueError without the password.

    Example:
        >>> read_address("http://gpu0:8000/"), read_address("unix:///run/vllm.sock")
        (('http://gpu0:8000', '', None), ('http://localhost', '/run/vllm.sock', None))
    """
    try:
        parts = urlsplit(worker)
        port = parts.port
    except ValueError:
        raise ValueError(f"worker {worker_name(worker)!r} is no URL: http://host:port") from None
    if parts.scheme == "unix":
        if parts.netloc or not parts.path:
            raise ValueError(f"worker {worker_name(worker)!r} must be unix:///path/of.sock")
        return "http://localhost", unquote(parts.path), None
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0:
        raise ValueError(f"worker {worker_name(worker)!r} must be http://host:port, https://host or unix:///path")
    if parts.query or parts.fragment:
        raise ValueError(f"worker {worker_name(worker)!r} must not have a query")
    path = parts.path.rstrip("/")
    if path.endswith("/v1"):
        raise ValueError(f"worker {worker_name(worker)!r} must end before /v1, which requests bring")
    login = None
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        login = "Basic " + base64.b64encode(pair.encode()).decode()
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}", "", login


class Upstreams:
    """The HTTP clients of a gateway's workers: one for all that are on TCP, and one for each unix socket.

    Make and use it in one event loop. Needs the extra `cachelb[serve]`.

    Example:
        >>> import asyncio
        >>> from cachelb.serve import Upstreams
        >>> async def main():
        ...     async with Upstreams() as upstreams:
        ...         return upstreams.of("http://gpu0:8000").base
        >>> asyncio.run(main())
        'http://gpu0:8000'
    """

    def __init__(self, *, ca_file: str | Path | None = None, connect_timeout_s: float = 5.0) -> None:
        """Open nothing yet.

        Args:
            ca_file: Certificates in PEM that `https://` workers are checked with, in place of the system's.
            connect_timeout_s: Seconds that opening a connection may take.

        Raises:
            ModuleNotFoundError: The extra is not installed.
            OSError: The file cannot be read, or holds no certificate.
            TypeError: An argument has the wrong type.
            ValueError: An argument is out of range.
        """
        need("cachelb.serve", "aiohttp")
        self._connect_timeout_s = seconds("connect_timeout_s", connect_timeout_s)
        self._tls = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
        self._sessions: dict[str, aiohttp.ClientSession] = {}
        self._upstreams: dict[str, Upstream] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def of(self, worker: str, router: Router[str] | None = None) -> Upstream:
        """Return where the requests of a worker go.

        Args:
            worker: Its URL.
            router: The router that knows the others; those that it has no more are forgotten when one is new.

        Raises:
            ValueError: It is no URL of a worker.
        """
        found = self._upstreams.get(worker)
        if found is None:
            base, socket_path, authorization = read_address(worker)
            if router is not None:
                self.keep([worker, *router.workers()])
            found = self._upstreams[worker] = Upstream(self._session(socket_path), base, authorization)
        return found

    def keep(self, workers: Collection[str]) -> None:
        """Forget all workers but these, and close the clients of their sockets.

        Args:
            workers: URLs of the workers there are now.
        """
        for worker in self._upstreams.keys() - set(workers):
            _, socket_path, _ = read_address(worker)
            del self._upstreams[worker]
            if socket_path and (session := self._sessions.pop(socket_path, None)) is not None:
                task = asyncio.get_running_loop().create_task(session.close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)

    async def aclose(self) -> None:
        """Close every connection. Idempotent."""
        sessions = list(self._sessions.values())
        self._sessions.clear()
        self._upstreams.clear()
        for session in sessions:
            await session.close()
        if self._closing:
            await asyncio.wait(self._closing)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()

    def _session(self, socket_path: str) -> aiohttp.ClientSession:
        import aiohttp

        if socket_path not in self._sessions:
            connector: aiohttp.BaseConnector
            if socket_path:
                connector = aiohttp.UnixConnector(socket_path, limit=0, keepalive_timeout=_KEEPALIVE_S)
            else:
                connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S, ssl=self._tls)
            self._sessions[socket_path] = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout_s),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._sessions[socket_path]
