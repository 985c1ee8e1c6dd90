"""Requests that the gateway answers itself, with errors in the form of OpenAI's API."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from cachelb.serve.asgi import Receive, Send, retry_header, send_json

_TYPES: Final = {404: "not_found_error", 429: "rate_limit_error"}
_SERVER_ERROR: Final = 500
_LINGER_S: Final = 2.0
_LINGER_BYTES: Final = 64 << 20


class Refusal(Exception):  # noqa: N818 - an answer, not a fault
    """An answer in place of a worker's. Its text is for clients: it names no worker."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        retry_after_s: float | None = None,
        closes: bool = False,
    ) -> None:
        """Keep the answer. It `closes` the connection where the rest of the request is not read."""
        super().__init__(message)
        self.status, self.code = status, code
        self._closes = closes
        self._headers: list[tuple[bytes, bytes]] = []
        if retry_after_s is not None:
            self._headers.append(retry_header(retry_after_s))
        if closes:
            self._headers.append((b"connection", b"close"))

    async def send(self, send: Send, receive: Receive) -> None:
        """Send it; of a connection that it closes, read what comes for a while, or the reset would overtake it."""
        kind = _TYPES.get(self.status, "server_error" if self.status >= _SERVER_ERROR else "invalid_request_error")
        error = {"message": str(self), "type": kind, "code": self.code}
        await send_json(send, self.status, {"error": error}, self._headers, is_last=not self._closes)
        if self._closes:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LINGER_S):
                    await _discard(receive)
            await send({"type": "http.response.body", "body": b""})


async def _discard(receive: Receive) -> None:
    left = _LINGER_BYTES
    while left > 0:
        message = await receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            return
        left -= len(message.get("body", b"")) + 1
