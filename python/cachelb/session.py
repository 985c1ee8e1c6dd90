"""The key of a conversation, read from a client's request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from cachelb.arguments import listed

if TYPE_CHECKING:
    from cachelb.bodies import Headers

_HEADERS = ("x-semantic-cluster-id", "x-session-id", "x-user-id", "x-tenant-id", "x-correlation-id")
_BODY_FIELDS = ("user", "session_id", "user_id")
_PAIR = (tuple, list)


def session_key(headers: Headers | None, body: object = None, *, extra_headers: Iterable[str] = ()) -> str | None:
    """Find the key of the conversation that a request belongs to, for `select_worker(session=...)`.

    The first of these that is present and not blank:

    1. the headers `x-semantic-cluster-id`, `x-session-id`, `x-user-id`, `x-tenant-id`, `x-correlation-id`;
    2. `extra_headers`, in the order given;
    3. the fields of the body `session_params.session_id`, `user`, `session_id`, `user_id`.

    `x-request-id` and `x-trace-id` are not read: they are new with each request, and a key made of them would send
    every turn of a conversation to another worker. Without a key there is still prefix affinity, and policies that need
    one take the first tokens of the prompt.

    Args:
        headers: The request's headers: a mapping, or pairs of str or bytes as in ASGI. Case does not matter.
        body: The parsed JSON body. A body other than an object, or a field other than a str or int, has no key.
        extra_headers: Names of further headers to read, such as that of your client library.

    Returns:
        The key, or None. It identifies a client: keep it out of logs.

    Raises:
        TypeError: The body is not parsed yet, or headers are of another kind than above.

    Example:
        >>> import cachelb
        >>> cachelb.session_key({"X-Session-Id": "s1", "X-Request-Id": "r1"}, {"user": "ann"})
        's1'
        >>> cachelb.session_key([(b"x-request-id", b"r1")], {"user": "ann"})
        'ann'
        >>> cachelb.session_key({"X-Request-Id": "r1"}) is None
        True
    """
    key = _from_headers(headers, extra_headers) or _from_body(body)
    if key is None or key.isascii():
        return key
    # JSON may carry half of a surrogate pair, which UTF-8, and so the core, cannot encode.
    return key.encode("utf-8", "replace").decode()


def _from_headers(headers: object, extra_headers: Iterable[str]) -> str | None:
    wanted: tuple[str, ...] = _HEADERS
    if extra_headers:
        if isinstance(extra_headers, str):
            raise TypeError("extra_headers must be several names, got one str; put it in a tuple")
        wanted += tuple(
            _text(name, "a name of extra_headers").lower() for name in listed("extra_headers", extra_headers)
        )
    found: dict[str, str] = {}
    for pair in listed("headers", _pairs(headers)):
        if not isinstance(pair, _PAIR) or len(pair) != 2:  # noqa: PLR2004 - a pair
            raise TypeError(f"headers must be pairs of name and value, got an item of type {type(pair).__name__}")
        name = _text(pair[0], "a header's name").lower()
        if name in wanted and name not in found:
            value = _text(pair[1], f"header {name}").strip()
            if value:
                found[name] = value
    if not found:
        return None
    return next(found[name] for name in wanted if name in found)


def _pairs(headers: object) -> Iterable[object]:
    if headers is None:
        return ()
    # The message classes of the standard library have items() but are not a Mapping.
    items = getattr(headers, "items", None)
    pairs = items() if callable(items) else headers
    if isinstance(pairs, (str, bytes)) or not isinstance(pairs, Iterable):
        raise TypeError(f"headers must be a mapping or a list of pairs, got {type(headers).__name__}")
    return pairs


def _text(value: object, name: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("latin-1")
    raise TypeError(f"{name} must be str or bytes, got {type(value).__name__}")


def _from_body(body: object) -> str | None:
    if isinstance(body, bytes | bytearray | memoryview):
        raise TypeError(f"body must be parsed JSON, got {type(body).__name__}")
    if not isinstance(body, Mapping):
        return None
    params = body.get("session_params")
    candidates = [params.get("session_id")] if isinstance(params, Mapping) else []
    candidates += [body.get(field) for field in _BODY_FIELDS]
    for value in candidates:
        # bool is an int, and no id.
        if isinstance(value, str | int) and not isinstance(value, bool):
            text = str(value).strip()
            if text:
                return text
    return None
