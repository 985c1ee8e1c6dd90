"""Types of ASGI, and answers that are whole."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from typing import Any, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
RawHeaders: TypeAlias = Iterable[tuple[bytes, bytes]]

_JSON = (b"content-type", b"application/json")


class ClientLeft(Exception):  # noqa: N818 - no fault
    """The client left before its request was complete."""


async def body_chunks(receive: Receive) -> AsyncIterator[bytes]:
    """Iterate over a request's body; `ClientLeft` if there is no more of it."""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientLeft
        yield message.get("body", b"")
        if not message.get("more_body", False):
            return


async def send_whole(send: Send, status: int, body: bytes, headers: RawHeaders = (), *, is_last: bool = True) -> None:
    """Send an answer in one piece; `is_last` ends it."""
    kept = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": kept})
    await send({"type": "http.response.body", "body": body, "more_body": not is_last})


async def send_json(
    send: Send, status: int, document: object, headers: RawHeaders = (), *, is_last: bool = True
) -> None:
    """Send a document as JSON."""
    await send_whole(send, status, json.dumps(document).encode(), [_JSON, *headers], is_last=is_last)


def retry_header(delay_s: float) -> tuple[bytes, bytes]:
    """Return `Retry-After`, in whole seconds, at least one."""
    return (b"retry-after", b"%d" % max(1, math.ceil(delay_s)))
