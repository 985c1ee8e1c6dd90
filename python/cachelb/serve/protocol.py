"""uvicorn's protocol with bounds on what a client sends before its request reaches the application."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD_BYTES: Final = 64 << 10
MOST_HEADERS: Final = 256
MOST_FRAMING_BYTES: Final = 8 << 20
"""Of the sizes of chunks, and trailers."""
HEAD_TIMEOUT_S: Final = 15.0
_REFUSED: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class BoundedProtocol(HttpToolsProtocol):
    """Closes connections whose request line and headers are too long or too slow, and those beyond a number."""

    def __init__(self, *arguments: Any, most_connections: int, **options: Any) -> None:  # noqa: ANN401 - uvicorn's
        """Count nothing yet."""
        super().__init__(*arguments, **options)
        self._most_connections = most_connections
        self._is_head = True
        self._beside = 0  # bytes of this message that are no body
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Begin to wait for the first request."""
        super().connection_made(transport)
        if len(self.connections) > self._most_connections:
            transport.abort()
        else:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what is no body."""
        self._beside += len(data)
        super().data_received(data)
        if self._beside > (MOST_HEAD_BYTES if self._is_head else MOST_FRAMING_BYTES):
            if not self.transport.is_closing():
                self.transport.write(_REFUSED if self._is_head else b"")
                self.transport.close()
        elif self._is_head and self._timer is None and self._beside:
            self._wait()

    def on_message_begin(self) -> None:
        """Begin a head."""
        super().on_message_begin()
        self._is_head = True

    def on_headers_complete(self) -> None:
        """End the head."""
        self._is_head = False
        self._stop_waiting()
        if len(self.headers) > MOST_HEADERS:
            raise ValueError("too many headers")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Leave the body to the application's limit."""
        self._beside -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Count anew."""
        self._beside = 0
        self._is_head = True
        super().on_message_complete()

    def _wait(self) -> None:
        self._timer = self.loop.call_later(HEAD_TIMEOUT_S, self._close)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close(self) -> None:
        if self._is_head and not self.transport.is_closing():
            self.transport.close()
