"""Answers of engines: their token counts, how long they ask to wait, and the headers that may go to clients."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Literal, TypedDict

from cachelb.arguments import listed
from cachelb.bodies import DECISION_HEADERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

TAIL_BYTES = 4096
"""The usage stands within this many bytes of the end of an answer, unless log probabilities or the like follow it."""

_COUNT = re.compile(rb'"(cached_tokens|prompt_tokens|completion_tokens)"\s*:\s*(-?\d{1,20})(?![\w.])')
_NAMES: dict[bytes, Literal["cached_tokens", "prompt_tokens", "output_tokens"]] = {
    b"cached_tokens": "cached_tokens",
    b"prompt_tokens": "prompt_tokens",
    b"completion_tokens": "output_tokens",
}


class Usage(TypedDict, total=False):
    """Token counts of an engine, as `Decision.on_complete` takes them. Unreported counts are absent.

    Example:
        >>> Usage(cached_tokens=48)
        {'cached_tokens': 48}
    """

    cached_tokens: int
    prompt_tokens: int
    output_tokens: int


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
        >>> from cachelb.answers import header_filter
        >>> decision = cachelb.Router(["gpu0"]).select_worker()
        >>> header_filter()(decision.headers), header_filter(["x-cachelb-reason"])(decision.headers)
        ({}, {'x-cachelb-reason': 'only-one'})
    """
    names = frozenset(name.lower() for name in ([expose] if isinstance(expose, str) else listed("expose", expose)))
    if unknown := sorted(names - DECISION_HEADERS):
        raise ValueError(
            f"no header of decisions is called {unknown[0]!r}; there are {', '.join(sorted(DECISION_HEADERS))}"
        )
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
        >>> from cachelb.answers import read_usage
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
        >>> from cachelb.answers import retry_after
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
