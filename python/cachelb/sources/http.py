"""Addresses of pages, and the errors of fetching them; `cachelb.sources.pages` fetches."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_PAGE_BYTES: Final = 8 * 1024 * 1024
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")  # aiohttp refuses to send these


class PageError(Exception):
    """A page could not be fetched; the text is a short class of errors, without address or content."""

    @property
    def is_answer(self) -> bool:
        """Whether the server answered all the same, and not a proxy in front of it."""
        return bool(re.fullmatch(r"HTTP [1-4]\d\d|not HTTP|page too large", str(self)))


@dataclass(frozen=True, slots=True)
class Address:
    """Where a page is, and what to send for it."""

    url: str  # without user and password
    socket_path: str  # empty where the connection is TCP
    headers: Mapping[str, str] = field(repr=False)
    body: bytes | None = field(repr=False)  # JSON, of a POST


def default_metrics_url(key: str) -> str:
    """Return where engines have their metrics page: `/metrics` beside the API.

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
    """Work out the address and the request of a metrics URL, or of another page of its server.

    The page of a Unix socket, `unix:///path/of.sock`, is `/metrics`. A user and password in the URL become an
    `Authorization` header. Errors do not repeat the URL, which may hold a password.

    Example:
        >>> from cachelb.sources.http import metrics_address
        >>> metrics_address("http://user:secret@gpu0:8000/metrics", {}).url
        'http://gpu0:8000/metrics'
    """
    parts, _ = _split(url)
    lines = {"Accept": "text/plain", "Accept-Encoding": "identity", "User-Agent": "cachelb"}
    server, target, socket_path = "http://localhost", "/metrics", ""
    match parts.scheme:
        case "unix":
            socket_path = unquote(parts.path)
            if parts.netloc or not socket_path:
                raise ValueError("a metrics URL of a Unix socket has three slashes: unix:///path/of.sock")
        case "http" | "https":
            if not parts.hostname:
                raise ValueError("a metrics URL needs a host: http://host:port/metrics")
            server = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            if parts.username is not None:
                login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
                lines["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
        case _:
            raise ValueError("a metrics URL begins with http://, https:// or unix:///")
    target = target if page is None else page
    if not target.isascii() or any(sign.isspace() for sign in target):
        raise ValueError("a metrics URL must be plain ASCII without spaces; percent-encode the rest")
    if body is not None:
        lines["Content-Type"] = "application/json"
    _add_headers(lines, headers)
    return Address(server + target, socket_path, lines, body)


def _add_headers(lines: dict[str, str], headers: Mapping[str, str]) -> None:
    """Add headers to others, instead of those with the same name."""
    for name, value in headers.items():
        if _CONTROL.search(name + value):
            raise ValueError(f"header {name!r} has a line break or another control character in it")
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

    A router that keeps no keys beside names has the name itself. The address is not to be shown.

    Example:
        >>> from cachelb import Router
        >>> from cachelb.sources.http import address_of
        >>> router = Router(["http://user:secret@gpu0:8000/"])
        >>> router.keys(), address_of(router, "http://gpu0:8000")
        (['http://gpu0:8000'], 'http://user:secret@gpu0:8000')
    """
    known: Callable[[str], str] | None = getattr(getattr(router, "event_sink", None), "address_of", None)
    return name if known is None else known(name)
