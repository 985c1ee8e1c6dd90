"""Requests and answers of the OpenAI API: routing arguments, and the engine's token counts.

The gateway forwards the bytes that came and gives back the bytes that come; nothing here changes them.
"""

from __future__ import annotations

import json
import re
import sys
import time
from array import array
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast

from cachelb.arguments import listed, seconds, whole
from cachelb.errors import CachelbError
from cachelb.session import session_key
from cachelb.text import render_messages

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable, Iterable

    from cachelb.bodies import Headers
    from cachelb.types import RequestArguments

TAIL_BYTES = 4096
"""The usage stands within this many bytes of the end of an answer, unless log probabilities or the like follow it."""

INLINE_BYTES = 1 << 16
"""Longer bodies are parsed in a thread. The costliest text of this length takes some 0.1 s."""

_BYTES_PER_TOKEN = 4
_COUNT = re.compile(rb'"(cached_tokens|prompt_tokens|completion_tokens)"\s*:\s*(-?\d{1,20})(?![\w.])')
_NAMES: dict[bytes, Literal["cached_tokens", "prompt_tokens", "output_tokens"]] = {
    b"cached_tokens": "cached_tokens",
    b"prompt_tokens": "prompt_tokens",
    b"completion_tokens": "output_tokens",
}


_EXPOSABLE = frozenset(
    f"x-cachelb-{name}" for name in ("worker", "prefill-worker", "decision", "reason", "matched-tokens")
)


class Usage(TypedDict, total=False):
    """Token counts of an engine, as `Decision.on_complete` takes them. Unreported counts are absent.

    Example:
        >>> Usage(cached_tokens=48)
        {'cached_tokens': 48}
    """

    cached_tokens: int
    prompt_tokens: int
    output_tokens: int


class RequestError(CachelbError, ValueError):
    """A request that must not be forwarded to a worker.

    Attributes:
        status: HTTP status to answer with: 400, 408 or 413.
    """

    def __init__(self, status: int, message: str) -> None:
        """Keep the status.

        Args:
            status: HTTP status to answer with.
            message: For the client: it shows nothing but limits.
        """
        super().__init__(message)
        self.status = status


async def read_request(
    chunks: AsyncIterable[bytes], headers: Headers | None = None, *, max_bytes: int = 4 << 20, timeout_s: float = 30.0
) -> tuple[bytes, RequestArguments]:
    """Read a request's body, within bounds, and collect its arguments for `Router.select_worker`.

    A large body is parsed in a thread: others are served meanwhile.

    Args:
        chunks: The body as it comes, such as `request.stream()` of Starlette.
        headers: The request's headers, for the session.
        max_bytes: Bytes it may have.
        timeout_s: Seconds it may take.

    Returns:
        The body, to be forwarded as it is, and keyword arguments, as `routing_arguments` returns them.

    Raises:
        RequestError: The body is too long, too slow, or no request for a completion.
        TypeError: A bound is not a number.
        ValueError: A bound is out of range.
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
    data = bytes(body)
    try:
        if len(data) <= INLINE_BYTES:
            return data, _read_arguments(data, headers)
        return data, await asyncio.to_thread(_read_arguments, data, headers)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(400, f"this is no request for a completion: {error}") from None


def routing_arguments(body: object, headers: Headers | None = None) -> RequestArguments:
    """Collect the `Router.select_worker` arguments of a request to `/v1/completions` or `/v1/chat/completions`.

    Token ids stay token ids, text stays text, and messages are rendered with their tools: nothing is tokenised. Of
    several prompts in one request the first one decides, and the tokens of all are booked.

    Args:
        body: The parsed JSON body.
        headers: The request's headers, for the session.

    Returns:
        Keyword arguments. A request without a prompt is routed by load.

    Raises:
        TypeError: The body, its messages or its prompt have the wrong type. No error shows content.
        ValueError: A message has no role, or is nested too deeply.

    Example:
        >>> from cachelb.openai import routing_arguments
        >>> routing_arguments({"prompt": [1, 2, 3], "max_tokens": 9}, {"x-session-id": "s1"})
        {'tokens': [1, 2, 3], 'session': 's1', 'max_output_tokens': 9}
    """
    if not isinstance(body, dict):
        raise TypeError(f"the body must be a JSON object, got {type(body).__name__}")
    found = _prompt(body)
    session = session_key(headers, body)
    if session is not None:
        found["session"] = session
    if isinstance(model := body.get("model"), str):
        found["model"] = _plain(model)
    if isinstance(salt := body.get("cache_salt"), str):
        found["cache_salt"] = _plain(salt)
    limit = body.get("max_completion_tokens", body.get("max_tokens"))
    if isinstance(limit, int) and not isinstance(limit, bool) and 0 <= limit < 1 << 31:
        found["max_output_tokens"] = limit
    return found


def header_filter(expose: Iterable[str] = ()) -> Callable[[Mapping[str, str]], dict[str, str]]:
    """Make the filter through which the headers of decisions go to clients.

    Worker URLs are internal, and `x-cachelb-matched-tokens` reveals to clients which prompts others have sent: name
    headers only where clients are trusted.

    Args:
        expose: Names of the headers that may leave; the others stay.

    Returns:
        A function that takes `Decision.headers` and returns those that may leave.

    Raises:
        ValueError: A decision has no header of that name.

    Example:
        >>> import cachelb
        >>> from cachelb.openai import header_filter
        >>> decision = cachelb.Router(["gpu0"]).select_worker()
        >>> header_filter()(decision.headers), header_filter(["x-cachelb-reason"])(decision.headers)
        ({}, {'x-cachelb-reason': 'only-one'})
    """
    names = frozenset(name.lower() for name in ([expose] if isinstance(expose, str) else listed("expose", expose)))
    if unknown := sorted(names - _EXPOSABLE):
        raise ValueError(f"no header of decisions is called {unknown[0]!r}; there are {', '.join(sorted(_EXPOSABLE))}")
    return lambda headers: {name: value for name, value in headers.items() if name in names}


def read_usage(tail: bytes) -> Usage:
    r"""Find the token counts at the end of an answer, streamed or not.

    An engine sends them with a stream only if the client asked for it: `stream_options.include_usage`. vLLM has to be
    started with `--enable-prompt-tokens-details` for `cached_tokens`.

    Args:
        tail: The last `TAIL_BYTES` bytes of the answer, or more.

    Returns:
        The engine's counts; `Decision.on_complete` ignores those out of range. Unreported counts, and values that are
        not integers, are absent, not 0.

    Example:
        >>> from cachelb.openai import read_usage
        >>> read_usage(b'..."usage":{"prompt_tokens":64,"prompt_tokens_details":{"cached_tokens":48}}}\n\ndata: [DONE]')
        {'prompt_tokens': 64, 'cached_tokens': 48}
    """
    found: Usage = {}
    for name, count in _COUNT.findall(tail):
        found[_NAMES[name]] = int(count)
    return found


def retry_after(headers: object) -> float | None:
    """Read how long an answer with 429 or 503 asks to wait, for `Decision.on_error`.

    Args:
        headers: The answer's headers, a mapping of names in any case.

    Returns:
        Seconds, 0 or more; None without a `Retry-After` that can be read.

    Example:
        >>> from cachelb.openai import retry_after
        >>> retry_after({"Retry-After": "2"}), retry_after({"retry-after": "soon"}), retry_after({})
        (2.0, None, None)
    """
    if not isinstance(headers, Mapping):
        return None
    text = headers.get("retry-after") or headers.get("Retry-After")
    if not isinstance(text, str):
        return None
    if re.fullmatch(r"\s*\d{1,9}(\.\d{1,9})?\s*", text, re.ASCII):
        return float(text)
    try:
        when = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    return max(0.0, when.timestamp() - time.time())


def _read_arguments(data: bytes, headers: Headers | None) -> RequestArguments:
    found = routing_arguments(json.loads(data), headers)
    if "tokens" in found:
        try:
            found["tokens"] = array("I", cast("list[int]", found["tokens"]))
        except (OverflowError, TypeError):
            raise ValueError("a token id of the prompt is no integer from 0 to 4294967295") from None
    return found


def _prompt(body: dict[str, Any]) -> RequestArguments:
    """Find the arguments that describe the prompt."""
    if body.get("messages") is not None:
        return {"text": render_messages(body["messages"], body.get("tools"))}
    prompt = body.get("prompt")
    found: RequestArguments = {}
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            found["prompt_tokens"] = sum(map(_length, prompt))
        prompt = prompt[0]
    if isinstance(prompt, str):
        found["text"] = _plain(prompt)
    elif isinstance(prompt, list):
        found["tokens"] = prompt
    elif prompt is not None:
        raise TypeError(f"prompt must be a string or a list of token ids, got {type(prompt).__name__}")
    return found


def _length(prompt: object) -> int:
    """Return the tokens of one of several prompts; of a text, as many as the router estimates."""
    if isinstance(prompt, list):
        return len(prompt)
    return -(-len(_plain(prompt).encode()) // _BYTES_PER_TOKEN) if isinstance(prompt, str) else 0


def _plain(text: str) -> str:
    """Replace halves of surrogate pairs, which JSON may carry and UTF-8 does not know."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
