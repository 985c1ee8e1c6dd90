"""Headers between two connections: what each direction passes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cachelb.bodies import UNTRUSTED_HEADERS

if TYPE_CHECKING:
    from collections.abc import Sequence

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
_USUAL: Final = frozenset({b"keep-alive", b"close", b"Keep-Alive", b"Close"})


def request_headers(headers: Sequence[tuple[bytes, bytes]], *, is_read: bool = False) -> list[tuple[str, str]]:
    """Return the headers of a client's request that a worker gets. Names are in lower case.

    The answer comes as it is asked for here, or without an encoding: where it `is_read` on its way, and where the
    client has not asked, for which the client library would.

    Example:
        >>> request_headers([(b"host", b"a"), (b"authorization", b"Bearer k"), (b"connection", b"x-a"), (b"x-a", b"1")])
        [('authorization', 'Bearer k'), ('accept-encoding', 'identity')]
    """
    found = []
    named: frozenset[bytes] = frozenset()
    has_encoding = False
    for name, value in headers:
        if name not in _TO_WORKER:
            if name == b"accept-encoding":
                if is_read:
                    continue
                has_encoding = True
            found.append((name.decode("latin-1"), _text(value)))
        elif name == b"connection" and value not in _USUAL:
            named |= _tokens(value)
    if named:
        found = [each for each in found if each[0].encode("latin-1") not in named]
    if not has_encoding:
        found.append(("accept-encoding", "identity"))
    return found


def answer_headers(headers: Sequence[tuple[bytes, bytes]], status: int) -> list[tuple[bytes, bytes]]:
    """Return the headers of a worker's answer that a client gets, with names in lower case.

    Example:
        >>> answer_headers([(b"Content-Type", b"a/b"), (b"Server", b"x"), (b"Keep-Alive", b"9")], 200)
        [(b'content-type', b'a/b')]
    """
    found = []
    named: frozenset[bytes] = frozenset()
    for name, value in headers:
        lower = name.lower()
        if lower not in _TO_CLIENT:
            found.append((lower, value))
        elif lower == b"connection" and value not in _USUAL:
            named |= _tokens(value)
    if status in {204, 304}:
        named |= {b"content-length"}  # of a body that is not sent
    return [each for each in found if each[0] not in named] if named else found


def _tokens(value: bytes) -> frozenset[bytes]:
    """Return the names in a `Connection` header."""
    return frozenset(token.strip() for token in value.lower().split(b","))


def _text(value: bytes) -> str:
    """Decode a value such that the client library, which encodes UTF-8, sends the same bytes where it can."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
