"""Renderers for `RequestBodies.renderer`: the token ids of a body, from a tokenizer or from an engine."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import ssl
import threading
import time
from array import array
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

from cachelb.common.arguments import require, seconds, text_headers, whole

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence
    from typing import Self

    from _typeshed import WriteableBuffer

    from cachelb.tokenizers import Tokenizer

_MORE_FIELDS: Final = (
    "add_special_tokens",
    "chat_template",
    "continue_final_message",
    "documents",
    "mm_processor_kwargs",
    "reasoning_effort",
    "truncate_prompt_tokens",
)
"""Fields that change the token ids, in ways that differ between engines."""

_PATH: Final = re.compile(r"/[\w./:%~-]*", re.ASCII)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_FAILURES: Final = 3
"""Calls in a row that fail before the others are spared the wait."""


class TokenizerRenderer:
    """Renders chats and completions with a tokenizer of this process, such as `cachelb.tokenizers.HfTokenizer`.

    Tokenizing takes about a millisecond per 300 new tokens, in the thread that selects.

    Example:
        >>> from cachelb.renderers import TokenizerRenderer
        >>> class Bytes:
        ...     def encode(self, text):
        ...         return list(text.encode())
        ...
        ...     def apply_chat_template(self, messages, tools=None, add_generation_prompt=True):
        ...         return self.encode("".join(message["content"] for message in messages))
        >>> TokenizerRenderer(Bytes())(b'{"prompt": "Hi!"}', "/v1/completions")
        [72, 105, 33]
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Render with a tokenizer.

        Args:
            tokenizer: Gives the ids of the engines; threads that select at once call it at once.
        """
        self._tokenizer = tokenizer

    def __call__(self, body: bytes, path: str) -> Sequence[int]:
        """Tokenize the prompt of a body.

        Args:
            body: JSON of a chat completion, a completion, or SGLang's `generate`.
            path: Where it was sent.

        Returns:
            The token ids.

        Raises:
            ValueError: Only the engine can render it: another path, several prompts, or a field that the tokenizer does
                not take, such as `documents`.
        """
        fields: dict[str, Any] = json.loads(body)
        for name in _MORE_FIELDS:
            if fields.get(name) not in (None, []):
                raise ValueError(f"only the engine renders a request with {name!r}")
        match path.partition("?")[0].rstrip("/").rpartition("/")[2], fields:
            case "completions", {"messages": messages}:
                opening = fields.get("add_generation_prompt")
                return self._tokenizer.apply_chat_template(
                    messages,
                    fields.get("tools"),
                    True if opening is None else opening,
                    **(fields.get("chat_template_kwargs") or {}),
                )
            case ("completions", {"prompt": str() as text} | {"prompt": [str() as text]}) | (
                "generate",
                {"text": str() as text},
            ):
                return self._tokenizer.encode(text)
        raise ValueError("only the engine renders such a request")


class EngineRenderer:
    """Has bodies rendered by an engine: a POST to their path with `/render` behind it.

    vLLM renders chat completions and completions so, messages from 0.29 and responses from 0.30, from where it takes
    `--enable-scale-out`; `vllm launch render` does it without a GPU. Neither headers of the client nor the query of its
    path are sent. Connections are kept, as many as threads select at once. After three failures in a row the next calls
    fail at once for `pause_s` seconds, so that a dead engine costs little.

    A selection waits for the answer: an asyncio gateway selects in a thread, or renders in one and passes `tokens=`.

    Example:
        >>> import cachelb
        >>> from cachelb.renderers import EngineRenderer
        >>> bodies = cachelb.RequestBodies(renderer=EngineRenderer("http://gpu0:8000"), renderer_min_bytes=2000)
        >>> router = cachelb.Router(["http://gpu0:8000"], bodies=bodies)
        >>> router.select_worker(body=b'{"prompt": "Hello!"}', path="/v1/completions").prompt_tokens  # not sent
        2
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 0.5,
        max_bytes: int = 16 << 20,
        pause_s: float = 5.0,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Set the engine; nothing is connected yet.

        Args:
            url: `http://host:port` or `https://host:port`.
            timeout_s: Seconds for a call, or for connecting to one of several addresses of a name; finding them is not
                included.
            max_bytes: The most bytes of an answer.
            pause_s: Seconds without a call after failures; 0 is none.
            headers: Headers to send, such as `Authorization`.
            tls: Context that verifies `https` servers; None for the system's certificates.

        Raises:
            TypeError: An argument is of another type.
            ValueError: The URL has another form, a number is out of range, or a header has a control character.
        """
        require("url", url, str, "text")
        self._timeout_s = seconds("timeout_s", timeout_s)
        self._max_bytes = whole("max_bytes", max_bytes, 1)
        self._pause_s = seconds("pause_s", pause_s, least=0.0)
        self._connect = _connector(url, tls)
        self._headers = {"Content-Type": "application/json", "User-Agent": "cachelb"}
        for name, value in text_headers(headers or None).items():
            if _CONTROL.search(name + value):
                raise ValueError(f"header {name!r} has a control character in it")
            self._headers[name] = value
        self._idle: list[tuple[int, HTTPConnection]] = []  # with the process that opened each: a child has copies
        self._lock = threading.Lock()
        self._failures = 0
        self._resumes_s = 0.0

    def __call__(self, body: bytes, path: str) -> array[int]:
        """Ask the engine for the token ids of a body.

        Args:
            body: The body of a request, as the client sent it.
            path: Its path.

        Returns:
            The token ids.

        Raises:
            OSError: The engine is not there, took too long, or is not asked for now, after failures.
            http.client.HTTPException: The answer is not HTTP.
            ValueError: The engine refused the body, gave an answer without token ids or above `max_bytes`, or the body
                has media, which token ids do not name.
        """
        path = path.partition("?")[0].rstrip("/")
        if not _PATH.fullmatch(path):
            raise ValueError("only plain paths are sent")
        if time.monotonic() < self._resumes_s:
            raise ConnectionError("the engine failed lately")
        try:
            status, answer = self._post(f"{path}/render", body)
        except (OSError, HTTPException):
            self._note(failed=True)
            raise
        self._note(failed=False)
        if status != HTTPStatus.OK:
            raise ValueError(f"the engine answered with status {status}")
        if len(answer) > self._max_bytes:
            raise ValueError(f"the engine's answer is longer than {self._max_bytes} bytes")
        match json.loads(answer):
            # One prompt of completions is a list of one.
            case {"token_ids": [_, *_] as ids, **rest} | [{"token_ids": [_, *_] as ids, **rest}]:
                if not rest.get("features"):
                    return array("I", ids)
        raise ValueError("the engine's answer has no token ids, or media beside them")

    def close(self) -> None:
        """Close the connections that are not in use; a later call opens new ones."""
        while self._idle:
            self._idle.pop()[1].close()

    def __enter__(self) -> Self:
        """Return the renderer itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self.close()

    def _note(self, *, failed: bool) -> None:
        with self._lock:
            self._failures = self._failures + 1 if failed else 0
            if self._failures >= _FAILURES:
                self._resumes_s = time.monotonic() + self._pause_s

    def _post(self, path: str, body: bytes) -> tuple[int, bytes]:
        deadline_s = time.monotonic() + self._timeout_s
        if (kept := self._kept()) is not None:
            # An engine may close a connection that is not in use at any time.
            with contextlib.suppress(ConnectionError, ssl.SSLError):
                return self._exchange(kept, path, body, deadline_s)
        return self._exchange(self._connect(timeout=self._timeout_s), path, body, deadline_s)

    def _kept(self) -> HTTPConnection | None:
        while True:
            try:
                pid, connection = self._idle.pop()
            except IndexError:
                return None
            if pid == os.getpid():
                return connection
            connection.close()

    def _exchange(self, connection: HTTPConnection, path: str, body: bytes, deadline_s: float) -> tuple[int, bytes]:
        try:
            if connection.sock is None:
                connection.connect()
            timely: Any = _Timely(cast("socket.socket", connection.sock), deadline_s)
            connection.response_class = cast("Any", lambda _sock, **options: HTTPResponse(timely, **options))
            timely.limit()
            connection.request("POST", path, body, self._headers)
            response = connection.getresponse()
            answer = response.read(self._max_bytes + 1)
        except BaseException:
            connection.close()
            raise
        if response.isclosed():
            self._idle.append((os.getpid(), connection))
        else:
            connection.close()
        return response.status, answer


class _Timely(io.RawIOBase):
    """Reads from a socket until a moment, however slowly the bytes come."""

    def __init__(self, sock: socket.socket, deadline_s: float) -> None:
        self._sock, self._deadline_s = sock, deadline_s

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return a buffer in front, as `http.client` asks of a socket."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        self.limit()
        return self._sock.recv_into(buffer)

    def limit(self) -> None:
        """Leave the next call of the socket the time that is left."""
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the engine took too long")
        self._sock.settimeout(left_s)


def _connector(url: str, tls: ssl.SSLContext | None) -> partial[HTTPConnection]:
    """Read a URL; errors do not repeat it, as it may hold a password."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    host = parts.hostname
    if host is None or parts.scheme not in ("http", "https") or "@" in parts.netloc or parts.path.strip("/"):
        raise ValueError("url must be http://host:port or https://host:port, without user and path")
    if parts.scheme == "http":
        return partial(HTTPConnection, host, port)
    return partial(HTTPSConnection, host, port, context=tls or ssl.create_default_context())
