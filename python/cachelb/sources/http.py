"""A keep-alive HTTP/1.1 client for small pages, on an asyncio event loop.

It exists because the standard library has none that is asynchronous, and polling must not need a third-party package.
It does GET, and POST of JSON, and nothing else: no redirects, no compression, no cookies.
"""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urlsplit

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

MAX_PAGE_BYTES = 8 * 1024 * 1024
_MAX_HEAD_BYTES = 64 * 1024
_OK = 200
_NO_BODY = (204, 304)


class PageError(Exception):
    """A page could not be fetched; the text is a short class of errors, without address or content."""


class _ClosedError(PageError):
    """The server closed the connection before the first byte of an answer."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a page is.

    Attributes:
        host: Host name or address; empty for a Unix socket.
        port: TCP port; 0 for a Unix socket.
        socket_path: Path of the Unix socket, or empty.
        tls: Speak TLS.
        request: The request, complete.
    """

    host: str
    port: int
    socket_path: str
    tls: bool
    request: bytes


def default_metrics_url(key: str) -> str:
    """Return where engines have their metrics page: `/metrics` beside the API.

    Args:
        key: Key of a worker: a URL, `host:port`, or `unix:///path/of.sock`.

    Returns:
        The URL of its metrics page.

    Raises:
        ValueError: The key is no address.

    Example:
        >>> from cachelb.sources.http import default_metrics_url
        >>> default_metrics_url("http://gpu0:8000/v1")
        'http://gpu0:8000/metrics'
    """
    if key.startswith("unix://"):
        return key
    parts, port = _split(key if "://" in key else f"http://{key}")
    if parts.scheme not in ("http", "https") or not parts.hostname or ("://" not in key and port is None):
        raise ValueError("the worker's key is no address; give MetricsSource a function: url=lambda key: ...")
    return f"{parts.scheme}://{parts.netloc}/metrics"


def metrics_address(
    url: str, headers: Mapping[str, str], *, page: str | None = None, body: bytes | None = None
) -> Address:
    """Work out where to connect and what to send for a metrics URL, or for another page of the same server.

    Args:
        url: `http://host:port/path`, `https://...`, or `unix:///path/of.sock`, of which the page is `/metrics`. A user
            and password in it become an `Authorization` header.
        headers: Headers to send along.
        page: Path of the page, instead of the one in the URL.
        body: JSON to send, which makes it a POST.

    Returns:
        The address.

    Raises:
        ValueError: The URL is none of these; the message does not repeat it, as it may hold a password.

    Example:
        >>> from cachelb.sources.http import metrics_address
        >>> address = metrics_address("http://gpu0:8000/metrics", {})
        >>> address.host, address.port
        ('gpu0', 8000)
    """
    parts, given_port = _split(url)
    lines = {"Host": "localhost", "Accept": "text/plain", "User-Agent": "cachelb"}
    host, port, socket_path, target = "", 0, "", "/metrics"
    match parts.scheme:
        case "unix":
            socket_path = unquote(parts.path)
            if parts.netloc or not socket_path:
                raise ValueError("a metrics URL of a Unix socket has three slashes: unix:///path/of.sock")
        case "http" | "https":
            if not parts.hostname:
                raise ValueError("a metrics URL needs a host: http://host:port/metrics")
            host, port = parts.hostname, given_port or (443 if parts.scheme == "https" else 80)
            lines["Host"] = parts.netloc.rpartition("@")[2]
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            if parts.username is not None:
                login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
                lines["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
        case _:
            raise ValueError("a metrics URL begins with http://, https:// or unix:///")
    target = target if page is None else page
    if body is not None:
        lines |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    _add_headers(lines, headers)
    if not target.isascii() or any(sign.isspace() for sign in target):
        raise ValueError("a metrics URL must be plain ASCII without spaces; percent-encode the rest")
    method = "GET" if body is None else "POST"
    head = f"{method} {target} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items()) + "\r\n"
    return Address(host, port, socket_path, parts.scheme == "https", head.encode("latin-1", "replace") + (body or b""))


def _add_headers(lines: dict[str, str], headers: Mapping[str, str]) -> None:
    """Add headers to others, instead of those with the same name."""
    for name, value in headers.items():
        if "\r" in name + value or "\n" in name + value:
            raise ValueError(f"header {name!r} has a line break in it")
        lines.pop(next((known for known in lines if known.lower() == name.lower()), ""), None)
        lines[name] = value


def _split(url: str) -> tuple[SplitResult, int | None]:
    """Split a URL; the standard library's errors repeat parts of it, which may be of a password."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("a metrics URL must be valid: http://host:port/metrics") from None
    return parts, port


def address_of(router: object, name: str) -> str:
    """Return what to connect to for a worker: its key as the caller has it, with the credentials its name lacks.

    Args:
        router: Where the worker is registered. One that keeps no keys beside names has the name itself.
        name: Name of the worker.

    Returns:
        The address, not to be shown.

    Raises:
        UnknownWorkerError: The worker is not registered (any more).

    Example:
        >>> from cachelb import Router
        >>> from cachelb.sources.http import address_of
        >>> router = Router(["http://user:secret@gpu0:8000/"])
        >>> router.keys(), address_of(router, "http://gpu0:8000")
        (['http://gpu0:8000'], 'http://user:secret@gpu0:8000')
    """
    known: Callable[[str], str] | None = getattr(router, "_address_of", None)
    return name if known is None else known(name)


class ResponseReader:
    r"""Takes the bytes of one response as they come.

    Example:
        >>> from cachelb.sources.http import ResponseReader
        >>> reader = ResponseReader()
        >>> reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel")
        False
        >>> reader.feed(b"lo"), reader.status, reader.body
        (True, 200, b'hello')
    """

    def __init__(self) -> None:
        """Wait for a status line."""
        self.status = 0
        self.keep_alive = True
        self._data = bytearray()
        self._parts: list[bytes] = []
        self._size = 0
        self._in_body = False
        self._chunked = False
        self._length: int | None = None

    @property
    def body(self) -> bytes:
        """The body so far."""
        return b"".join(self._parts)

    @property
    def is_untouched(self) -> bool:
        """Whether not one byte has come."""
        return not self.status and not self._data

    def feed(self, data: bytes) -> bool:
        """Take the next bytes.

        Args:
            data: What came.

        Returns:
            Whether the response is complete.

        Raises:
            PageError: This is no HTTP response, or it is too large.
        """
        self._data += data
        while not self._in_body:
            if not self._read_head():
                return False
        return self._read_chunks() if self._chunked else self._read_plain()

    def end(self) -> bool:
        """Take the end of the connection; return whether the response is complete."""
        self.keep_alive = False
        return self._in_body and not self._chunked and self._length is None

    def _read_head(self) -> bool:
        """Read the status line and the headers once they are there."""
        end = self._data.find(b"\r\n\r\n")
        if end < 0:
            if len(self._data) > _MAX_HEAD_BYTES:
                raise PageError("header too large")
            return False
        status_line, *lines = bytes(self._data[:end]).split(b"\r\n")
        del self._data[: end + 4]
        version, _, rest = status_line.partition(b" ")
        if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
            raise PageError("not HTTP")
        status = int(rest[:3])
        if 100 <= status < _OK:  # noqa: PLR2004 - an interim response: the real one follows
            return True
        self.status = status
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        connection = headers.get(b"connection", b"").lower()
        self.keep_alive = b"close" not in connection and (version != b"HTTP/1.0" or b"keep-alive" in connection)
        self._chunked = b"chunked" in headers.get(b"transfer-encoding", b"").lower()
        length = headers.get(b"content-length")
        if length is not None and not length.isdigit():
            raise PageError("not HTTP")
        self._length = 0 if status in _NO_BODY else None if length is None else int(length)
        self._in_body = True
        return True

    def _read_plain(self) -> bool:
        """Read a body of known length, or until the connection ends."""
        if self._length is None:
            self._take(len(self._data))
            return False
        self._take(min(len(self._data), self._length - self._size))
        return self._size == self._length and self._finish()

    def _read_chunks(self) -> bool:
        """Read all chunks that are complete."""
        while True:
            end = self._data.find(b"\r\n")
            if end < 0:
                if len(self._data) > _MAX_HEAD_BYTES:
                    raise PageError("not HTTP")
                return False
            try:
                size = int(self._data[:end].partition(b";")[0], 16)
            except ValueError:
                raise PageError("not HTTP") from None
            if size < 0:
                raise PageError("not HTTP")
            self._check(size)
            if len(self._data) < end + 2 + size + 2:
                return False
            del self._data[: end + 2]
            if size == 0:
                del self._data[:2]
                return self._finish()  # trailers are not waited for: nobody sends them with a metrics page
            self._take(size)
            del self._data[:2]

    def _finish(self) -> bool:
        """End the response; with bytes left over, the connection is out of step and not used again."""
        if self._data:
            self.keep_alive = False
        return True

    def _take(self, size: int) -> None:
        """Move bytes into the body."""
        self._check(size)
        self._parts.append(bytes(self._data[:size]))
        del self._data[:size]
        self._size += size

    def _check(self, size: int) -> None:
        """Refuse a page that outgrows the limit."""
        if self._size + size > MAX_PAGE_BYTES:
            raise PageError("page too large")


class _Stream(asyncio.Protocol):
    """One connection: at most one exchange at a time."""

    def __init__(self) -> None:
        self.is_open = False
        self._transport: asyncio.Transport | None = None
        self._reader = ResponseReader()
        self._waiter: asyncio.Future[None] | None = None

    async def exchange(self, request: bytes) -> ResponseReader:
        """Send a request and wait for the whole response."""
        if self._transport is None or not self.is_open:
            raise _ClosedError("closed")
        self._reader = ResponseReader()
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        await self._waiter
        return self._reader

    def abort(self) -> None:
        """Drop the connection at once."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        if isinstance(transport, asyncio.Transport):  # always: for the type checker
            self._transport = transport
            self.is_open = True

    def data_received(self, data: bytes) -> None:
        """Read on; wake the exchange when the response is complete."""
        if self._waiter is None or self._waiter.done():
            self.abort()  # nobody asked for anything: the stream is out of step
            return
        try:
            if self._reader.feed(data):
                self._waiter.set_result(None)
        except PageError as error:
            self._waiter.set_exception(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell an exchange that waits."""
        self.is_open = False
        if self._waiter is None or self._waiter.done():
            return
        if exc is None and self._reader.end():
            self._waiter.set_result(None)
        elif self._reader.is_untouched:
            self._waiter.set_exception(_ClosedError("closed"))
        else:
            self._waiter.set_exception(PageError("cut short"))


class PageClient:
    """Fetches one page again and again over one connection, opened when needed.

    Cancelling a fetch closes the connection: an answer that comes late must not be taken for the next one.
    """

    def __init__(self, address: Address, tls: ssl.SSLContext | None) -> None:
        """Keep the address; nothing is opened yet.

        Args:
            address: Where the page is.
            tls: What to check the server with, for an address with TLS; None is the system's certificates.
        """
        self._address = address
        self._tls = tls
        self._stream: _Stream | None = None

    async def get(self) -> bytes:
        """Fetch the page.

        Returns:
            The body.

        Raises:
            PageError: The answer is not 200, not HTTP, too large or cut short.
            OSError: There is no connection.
        """
        status, body = await self.ask()
        if status != _OK:
            raise PageError(f"HTTP {status}")
        return body

    async def ask(self) -> tuple[int, bytes]:
        """Send the request.

        Returns:
            Status and body of the answer, whatever the status.

        Raises:
            PageError: The answer is not HTTP, too large or cut short.
            OSError: There is no connection.
        """
        is_reused = self._stream is not None and self._stream.is_open
        try:
            answer = await self._exchange()
        except _ClosedError:
            if not is_reused:
                raise
            answer = await self._exchange()  # the server had closed an idle connection: no sign of bad health
        return answer.status, answer.body

    def close(self) -> None:
        """Drop the connection at once."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.abort()

    async def _exchange(self) -> ResponseReader:
        """Fetch once."""
        try:
            if self._stream is None or not self._stream.is_open:
                self._stream = await self._connect()
            answer = await self._stream.exchange(self._address.request)
        except BaseException:
            self.close()
            raise
        if not answer.keep_alive:
            self.close()
        return answer

    async def _connect(self) -> _Stream:
        """Open a connection."""
        loop, address = asyncio.get_running_loop(), self._address
        if address.socket_path:
            _, stream = await loop.create_unix_connection(_Stream, address.socket_path)
        else:
            tls = self._tls or True  # True: the system's certificates
            _, stream = await loop.create_connection(
                _Stream, address.host, address.port, ssl=tls if address.tls else None
            )
        return stream
