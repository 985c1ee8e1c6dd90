"""Fetching small pages with aiohttp; importing this needs it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Self

import aiohttp
from yarl import URL

from cachelb.sources.http import MAX_PAGE_BYTES, Address, PageError

if TYPE_CHECKING:
    import asyncio
    import ssl
    from collections.abc import Iterator
    from contextlib import AbstractAsyncContextManager

    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

_OK: Final = 200


class _Connector(aiohttp.BaseConnector):
    """Drops a kept connection on which the server has sent more than its answer: aiohttp takes it for the next one."""

    _latest: asyncio.Transport | None = None

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - theirs
    ) -> Connection:
        while True:
            connection = await super().connect(req, traces, timeout)
            if connection.protocol is None or not connection.protocol.should_close:
                self._latest = connection.transport
                return connection
            connection.close()

    def abort_closing(self) -> None:
        """End a connection that aiohttp closes; over TLS it waits half a minute for the server to close it too."""
        if self._latest is not None and self._latest.is_closing():
            self._latest.abort()


class _Tcp(_Connector, aiohttp.TCPConnector):
    pass


class _Unix(_Connector, aiohttp.UnixConnector):
    pass


@contextmanager
def plain_errors() -> Iterator[None]:
    """Raise `PageError` or `OSError` for errors of aiohttp, whose texts hold addresses, and what a server sent."""
    try:
        yield
    except aiohttp.ClientConnectorError as error:
        reason = error.__cause__
        raise reason if isinstance(reason, OSError) else OSError("no connection") from None
    except aiohttp.ClientPayloadError:
        raise PageError("cut short") from None
    except aiohttp.ClientConnectionError:
        raise PageError("closed") from None
    except ValueError:  # such as a host name that cannot be encoded
        raise PageError("bad request") from None
    except aiohttp.ClientError:
        raise PageError("not HTTP") from None


class PageClient:
    """Fetches one page again and again over one connection, opened when needed; `async with` closes it.

    It follows no redirects, decompresses nothing, keeps no cookies, and reads no proxies and passwords from the
    environment. Time is the caller's to limit: cancelling a fetch closes the connection.
    """

    def __init__(self, address: Address, tls: ssl.SSLContext | None, *, most_bytes: int = MAX_PAGE_BYTES) -> None:
        """Keep the address, what to check a server with, None is the system's certificates, and the largest body."""
        self._address = address
        self._tls = tls
        self._most_bytes = most_bytes

    async def __aenter__(self) -> Self:
        """Prepare; nothing is opened yet."""
        path = self._address.socket_path
        # A resolver of threads, as aiodns, where it is installed, does not read all that the system's does.
        self._connector = _Unix(path, limit=1) if path else _Tcp(limit=1, resolver=aiohttp.ThreadedResolver())
        self._session = aiohttp.ClientSession(
            connector=self._connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(),
            auto_decompress=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the connection."""
        await self._session.close()

    async def get(self) -> bytes:
        """Return the body of the page; raise as `ask` does, or a `PageError` for a status other than 200."""
        status, body = await self.ask()
        if status != _OK:
            raise PageError(f"HTTP {status}")
        return body

    async def ask(self) -> tuple[int, bytes]:
        """Send the request, and return status and body of the answer.

        Raises `PageError` for an answer that is not HTTP, too large or cut short, and `OSError` without a connection.
        """
        body = bytearray()
        try:
            with plain_errors():
                async with self._request() as response:
                    async for part in response.content.iter_any():
                        body += part
                        if len(body) > self._most_bytes:
                            raise PageError("page too large")
                    return response.status, bytes(body)
        finally:
            self._connector.abort_closing()

    def _request(self) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Begin to fetch; aiohttp tries a GET again whose connection the server had closed meanwhile."""
        address = self._address
        return self._session.request(
            "GET" if address.body is None else "POST",
            URL(address.url, encoded=True),
            data=address.body,
            headers=address.headers,
            ssl=self._tls or True,
            allow_redirects=False,
        )
