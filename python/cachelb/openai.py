"""What a gateway for the OpenAI API reads: what to route a request by, and what the engine counted.

The gateway forwards the bytes that came and gives back the bytes that come; nothing here changes them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from cachelb.session import session_key
from cachelb.text import render_messages

if TYPE_CHECKING:
    from cachelb.session import Headers
    from cachelb.types import RequestArguments

TAIL_BYTES = 4096
"""The usage stands within this many bytes of the end of an answer, unless log probabilities or the like follow it."""

_COUNT = re.compile(rb'"(cached_tokens|prompt_tokens|completion_tokens)"\s*:\s*(\d{1,15})\b')
_NAMES: dict[bytes, Literal["cached_tokens", "prompt_tokens", "output_tokens"]] = {
    b"cached_tokens": "cached_tokens",
    b"prompt_tokens": "prompt_tokens",
    b"completion_tokens": "output_tokens",
}


class Usage(TypedDict, total=False):
    """Token counts of an engine, as `Decision.on_complete` takes them. What the engine did not say is not there.

    Example:
        >>> Usage(cached_tokens=48)
        {'cached_tokens': 48}
    """

    cached_tokens: int
    prompt_tokens: int
    output_tokens: int


def routing_arguments(body: object, headers: Headers | None = None) -> RequestArguments:
    """Collect what `Router.select_worker` takes from a request to `/v1/completions` or `/v1/chat/completions`.

    Token ids stay token ids, text stays text, and messages are rendered with their tools: nothing is tokenised. Of
    several prompts in one request, the first one decides.

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


def read_usage(tail: bytes) -> Usage:
    r"""Find the token counts at the end of an answer, streamed or not.

    An engine sends them with a stream only if the client asked for it: `stream_options.include_usage`. vLLM has to be
    started with `--enable-prompt-tokens-details` for `cached_tokens`.

    Args:
        tail: The last `TAIL_BYTES` bytes of the answer, or more.

    Returns:
        The counts. What an engine does not say is not 0, and so is not there.

    Example:
        >>> from cachelb.openai import read_usage
        >>> read_usage(b'..."usage":{"prompt_tokens":64,"prompt_tokens_details":{"cached_tokens":48}}}\n\ndata: [DONE]')
        {'prompt_tokens': 64, 'cached_tokens': 48}
    """
    found: Usage = {}
    for name, count in _COUNT.findall(tail):
        found[_NAMES[name]] = int(count)
    return found


def _prompt(body: dict[str, Any]) -> RequestArguments:
    """Find what describes the prompt."""
    if body.get("messages") is not None:
        return {"text": render_messages(body["messages"], body.get("tools"))}
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if prompt is None:
        return {}
    if isinstance(prompt, str):
        return {"text": _plain(prompt)}
    if isinstance(prompt, list):
        return {"tokens": prompt}
    raise TypeError(f"prompt must be a string or a list of token ids, got {type(prompt).__name__}")


def _plain(text: str) -> str:
    """Replace halves of surrogate pairs, which JSON may carry and UTF-8 does not know."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
