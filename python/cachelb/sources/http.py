"""A keep-alive HTTP/1.1 client for small pages, on the standard library's streams and headers.

It exists because that has none that is asynchronous, and polling must not need a third-party package.
It does GET, and POST of JSON, and nothing else: no redirects, no compression, no cookies.
"""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass
from http.client import HTTPException, parse_headers
from io import BytesIO
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


@dataclass(frozen=True, slots=True)
class Answer:
    """A response.

    Attributes:
        status: Its status code.
        body: Its body, at most `MAX_PAGE_BYTES`.
        keep_alive: Another request may follow on the connection.
    """

    status: int
    body: bytes
    keep_alive: bool


async def read_answer(stream: asyncio.StreamReader) -> Answer:
    r"""Read one response.

    Args:
        stream: What the server sends, with a limit: that of a line, and of all headers.

    Returns:
        The response; interim ones before it are skipped.

    Raises:
        PageError: This is no HTTP response, it is too large or cut short.

    Example:
        >>> import asyncio
        >>> from cachelb.sources.http import read_answer
        >>> async def read(response: bytes):
        ...     stream = asyncio.StreamReader()
        ...     stream.feed_data(response)
        ...     return await read_answer(stream)
        >>> asyncio.run(read(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"))
        Answer(status=200, body=b'hello', keep_alive=True)
    """
    status, version, fields = 100, b"", b""
    try:
        while 100 <= status < _OK:  # noqa: PLR2004 - an interim response: the real one follows
            line, _, fields = (await _read_until(stream, b"\r\n\r\n", "header too large")).partition(b"\r\n")
            version, _, rest = line.partition(b" ")
            if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
                raise PageError("not HTTP")
            status = int(rest[:3])
    except (asyncio.IncompleteReadError, OSError) as error:
        if not version and not getattr(error, "partial", b""):
            raise _ClosedError("closed") from None
        raise PageError("cut short") from None
    try:
        headers = parse_headers(BytesIO(fields))
        connection = headers.get("Connection", "").lower()
        keep_alive = "close" not in connection and (version != b"HTTP/1.0" or "keep-alive" in connection)
        length = "0" if status in _NO_BODY else headers.get("Content-Length")
        if "chunked" in headers.get("Transfer-Encoding", "").lower():
            body, trailer = await _read_chunks(stream)
            return Answer(status, body, keep_alive and not trailer)
        if length is not None:
            return Answer(status, await stream.readexactly(_checked(int(length))), keep_alive)
        return Answer(status, await _read_to_end(stream), keep_alive=False)
    except (asyncio.IncompleteReadError, OSError):
        raise PageError("cut short") from None
    except (HTTPException, ValueError):
        raise PageError("not HTTP") from None


async def _read_until(stream: asyncio.StreamReader, end: bytes, error: str) -> bytes:
    """Read up to an end within the limit of the stream."""
    try:
        return await stream.readuntil(end)
    except asyncio.LimitOverrunError:
        raise PageError(error) from None


async def _read_chunks(stream: asyncio.StreamReader) -> tuple[bytes, bool]:
    """Read a body in chunks; also return whether trailers follow, which nobody sends with a metrics page."""
    parts: list[bytes] = []
    total = 0
    while True:
        line = await _read_until(stream, b"\r\n", "not HTTP")
        size = _checked(int(line.partition(b";")[0], 16), total)
        chunk = await stream.readexactly(size + 2)
        if size == 0:
            return b"".join(parts), chunk != b"\r\n"
        total += size
        parts.append(chunk[:size])


async def _read_to_end(stream: asyncio.StreamReader) -> bytes:
    """Read a body that ends with the connection."""
    body = bytearray()
    while part := await stream.read(_MAX_HEAD_BYTES):
        _checked(len(part), len(body))
        body += part
    return bytes(body)


def _checked(size: int, before: int = 0) -> int:
    """Return a size within the limit."""
    if size < 0:
        raise PageError("not HTTP")
    if before + size > MAX_PAGE_BYTES:
        raise PageError("page too large")
    return size


async def _is_idle(stream: asyncio.StreamReader) -> bool:
    """Whether a connection is open, and the server has sent nothing beyond its last answer."""
    try:
        async with asyncio.timeout(0):
            await stream.read(1)
    except TimeoutError:
        return True
    except OSError:
        pass
    return False


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
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

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
        if self._connection is not None and not await _is_idle(self._connection[0]):
            self.close()
        is_reused = self._connection is not None
        try:
            answer = await self._exchange()
        except _ClosedError:
            if not is_reused:
                raise
            answer = await self._exchange()  # the server had closed an idle connection: no sign of bad health
        return answer.status, answer.body

    def close(self) -> None:
        """Drop the connection at once."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection[1].transport.abort()

    async def _exchange(self) -> Answer:
        """Fetch once."""
        try:
            if self._connection is None:
                self._connection = await self._connect()
            reader, writer = self._connection
            writer.write(self._address.request)
            answer = await read_answer(reader)
        except BaseException:
            self.close()
            raise
        if not answer.keep_alive:
            self.close()
        return answer

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection."""
        address = self._address
        if address.socket_path:
            return await asyncio.open_unix_connection(address.socket_path, limit=_MAX_HEAD_BYTES)
        tls = self._tls or True  # True: the system's certificates
        return await asyncio.open_connection(
            address.host, address.port, ssl=tls if address.tls else None, limit=_MAX_HEAD_BYTES
        )
