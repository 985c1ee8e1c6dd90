"""Headers between two connections: what each direction passes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cachelb.bodies import UNTRUSTED_HEADERS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

_HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_UNTRUSTED: Final = frozenset(name.encode() for name in UNTRUSTED_HEADERS)
_TO_WORKER: Final = _HOP_BY_HOP | _UNTRUSTED | {b"host", b"content-length", b"expect"}
_TO_CLIENT: Final = _HOP_BY_HOP | _UNTRUSTED | {b"date", b"server"}  # uvicorn sets the date
_USUAL: Final = frozenset({b"keep-alive", b"close"})


def request_headers(headers: Iterable[tuple[bytes, bytes]], drop: Collection[bytes] = ()) -> list[tuple[str, str]]:
    """Return the headers of a client's request that a worker gets. Names are in lower case.

    Example:
        >>> request_headers([(b"host", b"a"), (b"authorization", b"Bearer k"), (b"connection", b"x-a"), (b"x-a", b"1")])
        [('authorization', 'Bearer k')]
    """
    found = [(name, value) for name, value in headers if name not in _TO_WORKER and name not in drop]
    named = _named(headers)
    return [(name.decode("latin-1"), _text(value)) for name, value in found if name not in named]


def answer_headers(headers: Iterable[tuple[bytes, bytes]], status: int) -> list[tuple[bytes, bytes]]:
    """Return the headers of a worker's answer that a client gets, with names in lower case.

    Example:
        >>> answer_headers([(b"Content-Type", b"a/b"), (b"Server", b"x"), (b"Keep-Alive", b"9")], 200)
        [(b'content-type', b'a/b')]
    """
    lower = [(name.lower(), value) for name, value in headers]
    named = _named(lower)
    if status in {204, 304}:
        named = named | {b"content-length"}  # of a body that is not sent
    return [(name, value) for name, value in lower if name not in _TO_CLIENT and name not in named]


def _named(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """Return the names in `Connection` headers."""
    values = [value.lower() for name, value in headers if name == b"connection"]
    if not values or _USUAL.issuperset(values):
        return frozenset()
    return frozenset(token.strip() for value in values for token in value.split(b","))


def _text(value: bytes) -> str:
    """Decode a value such that the client library, which encodes UTF-8, sends the same bytes where it can."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
