"""Requests on their way to `Router.select_worker`: bodies as they arrive, and bodies that a framework has parsed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from json import JSONEncoder
from typing import TYPE_CHECKING, Any

from cachelb.common.arguments import seconds, whole
from cachelb.errors import CachelbError

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Sequence


class RequestError(CachelbError, ValueError):
    """A request that must not be forwarded to a worker.

    Attributes:
        status: HTTP status to answer with; 408 or 413 from `read_request`.
    """

    def __init__(self, status: int, message: str) -> None:
        """Keep the status.

        Args:
            status: HTTP status to answer with.
            message: For the client: it shows nothing but limits.
        """
        super().__init__(message)
        self.status = status


async def read_request(chunks: AsyncIterable[bytes], *, max_bytes: int = 4 << 20, timeout_s: float = 30.0) -> bytes:
    """Read a request's body, within bounds, for `Router.select_worker(body=...)` and the worker.

    Args:
        chunks: The body as it comes, such as `request.stream()` of Starlette.
        max_bytes: Bytes it may have.
        timeout_s: Seconds it may take.

    Returns:
        The body.

    Raises:
        RequestError: The body is too long or too slow.
        TypeError: A bound is not a number.
        ValueError: A bound is out of range.

    Example:
        >>> import asyncio
        >>> from cachelb.requests import read_request
        >>> async def chunks():
        ...     yield b'{"prompt": '
        ...     yield b'"Hello!"}'
        >>> asyncio.run(read_request(chunks()))
        b'{"prompt": "Hello!"}'
    """
    import asyncio

    whole("max_bytes", max_bytes, 0, sys.maxsize)
    timeout_s = seconds("timeout_s", timeout_s, least=0.0)
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for chunk in chunks:
                body += chunk
                if not chunk:
                    await asyncio.sleep(0)  # or the timeout would never fire
                if len(body) > max_bytes:
                    raise RequestError(413, f"the body is longer than {max_bytes} bytes")
    except TimeoutError:
        raise RequestError(408, f"the body took longer than {timeout_s} s") from None
    return bytes(body)


def encode_body(fields: Mapping[str, Any]) -> bytes:
    """Serialise the fields of a request that a framework has parsed, for `Router.select_worker(body=...)`.

    Mappings of any type and Pydantic models count as objects. Halves of surrogate pairs become question marks.

    Args:
        fields: The fields, such as `messages` and `tools`.

    Returns:
        JSON in UTF-8.

    Raises:
        TypeError: A value is of a type that JSON does not know; the error names the type.
        ValueError: A number is not finite, or something contains itself or is nested too deeply.

    Example:
        >>> from cachelb.requests import encode_body
        >>> encode_body({"prompt": "Hello!", "max_tokens": 8})
        b'{"prompt":"Hello!","max_tokens":8}'
    """
    return _encode(fields, "the request")


def encode_messages(messages: Sequence[Mapping[str, Any]]) -> bytes:
    """Serialise the messages of a chat as the body of a request with nothing else: `messages=` of a selection.

    Args:
        messages: A list or tuple of mappings or Pydantic models.

    Returns:
        JSON in UTF-8.

    Raises:
        TypeError: Messages are not a list, an item is not a mapping, or a value is of a type that JSON does not know.
        ValueError: As `encode_body`.

    Example:
        >>> from cachelb.requests import encode_messages
        >>> encode_messages([{"role": "user", "content": "Hello!"}])
        b'{"messages":[{"role":"user","content":"Hello!"}]}'
    """
    if not isinstance(messages, (list, tuple)):
        raise TypeError(f"messages must be a list of mappings, got {type(messages).__name__}")
    for at, message in enumerate(messages):
        # Asking for dict first costs a quarter of asking for the abstract class alone.
        if not isinstance(message, (dict, Mapping)) and not hasattr(message, "model_dump"):
            raise TypeError(f"messages[{at}] must be a mapping, got {type(message).__name__}")
    return _encode({"messages": messages}, "messages")


def _encode(fields: Mapping[str, Any], name: str) -> bytes:
    try:
        text = _encoder.encode(fields)
    except TypeError as error:
        raise TypeError(f"{name} must hold values that JSON knows: {error}") from None
    except (ValueError, RecursionError):
        raise ValueError(f"{name} must hold finite numbers, not contain itself, and not be nested deeply") from None
    return text.encode("utf-8", "replace")


def _plain(value: object) -> dict[Any, Any]:
    """Convert what the encoder does not know."""
    if isinstance(value, Mapping):
        return dict(value)
    if (dump := getattr(value, "model_dump", None)) is not None:
        found: dict[Any, Any] = dump()
        return found
    raise TypeError(f"it is {type(value).__name__}")


_encoder = JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)
