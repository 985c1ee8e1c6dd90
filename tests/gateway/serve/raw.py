"""Bytes to and from a gateway, past any client library."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from tests.http_client import DEADLINE_S

HEAD = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"


@contextlib.contextmanager
def talking(url: str, data: bytes) -> Iterator[socket.socket]:
    """Open a connection and send some bytes."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=DEADLINE_S) as connection:
        connection.sendall(data)
        yield connection


def read_all(connection: socket.socket) -> bytes:
    """Read to the end, which may be a reset."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while data := connection.recv(1 << 16):
            received += data
    return received


def answer_of(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    """Read to the end; return the status and the error."""
    head, _, body = read_all(connection).partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]
