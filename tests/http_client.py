"""A plain HTTP client for tests: one connection a request, TCP or unix socket."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from email.message import Message
from http.client import HTTPConnection
from typing import Any, NamedTuple
from urllib.parse import urlsplit

DEADLINE_S = 120.0
JSON = {"Content-Type": "application/json"}
"""Engines refuse bodies that are not declared as such."""


class Answer(NamedTuple):
    """The response."""

    status: int
    headers: Message
    body: bytes

    @property
    def json(self) -> Any:
        """The body, parsed."""
        return json.loads(self.body)

    @property
    def cached_tokens(self) -> int:
        """Cached tokens of the usage."""
        tokens: int = self.json["usage"]["prompt_tokens_details"]["cached_tokens"]
        return tokens

    @property
    def events(self) -> list[Any]:
        """The events of a stream; the closing `[DONE]` as that string."""
        lines = self.body.decode().split("\n\n")
        assert lines.pop() == "", "the last event is not ended by an empty line"
        data = [line.removeprefix("data: ") for line in lines]
        return [text if text == "[DONE]" else json.loads(text) for text in data]


class UnixConnection(HTTPConnection):
    """A connection to a unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def connect(url: str, deadline_s: float = DEADLINE_S) -> HTTPConnection:
    """Return a connection to a worker, not yet opened."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return UnixConnection(parts.path, deadline_s)
    assert parts.hostname is not None
    return HTTPConnection(parts.hostname, parts.port, timeout=deadline_s)


def send(
    url: str, path: str, body: object = None, headers: Mapping[str, str] | None = None, deadline_s: float = DEADLINE_S
) -> Answer:
    """Send one request, POST if it has a body, and read the whole answer."""
    connection = connect(url, deadline_s)
    try:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        declared = {} if data is None else JSON
        connection.request("GET" if data is None else "POST", path, data, {**declared, **(headers or {})})
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())
    finally:
        connection.close()


def complete(url: str, prompt: object, headers: Mapping[str, str] | None = None, **fields: object) -> Answer:
    """Send a request for a completion."""
    return send(url, "/v1/completions", {"prompt": prompt, **fields}, headers)


def chat(url: str, *contents: str, **fields: object) -> Answer:
    """Send a conversation in which user and assistant take turns."""
    roles = ["user", "assistant"] * len(contents)
    messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]
    return send(url, "/v1/chat/completions", {"messages": messages, **fields})


def metrics(url: str, deadline_s: float = DEADLINE_S) -> dict[str, float]:
    """Read the metrics page: name to value, labels dropped."""
    lines = send(url, "/metrics", deadline_s=deadline_s).body.decode().splitlines()
    samples = [line.rpartition(" ") for line in lines if not line.startswith("#")]
    return {name.partition("{")[0]: float(value) for name, _, value in samples}
