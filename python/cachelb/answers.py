"""Answers of engines: their token counts, how long they ask to wait, and the headers that may go to clients."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Literal, Protocol, TypedDict

from cachelb.bodies import DECISION_HEADERS
from cachelb.common.arguments import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

TAIL_BYTES = 4096
"""The usage stands within this many bytes of the end of an answer, unless log probabilities or the like follow it."""

HEAD_BYTES = 4096
"""A response names itself within this many bytes."""

# In chats and completions, in the responses API, and in Anthropic's, whose `input_tokens` leave out what was cached.
_NAMES: dict[bytes, Literal["cached_tokens", "prompt_tokens", "output_tokens"]] = {
    b"cached_tokens": "cached_tokens",
    b"cache_read_input_tokens": "cached_tokens",
    b"prompt_tokens": "prompt_tokens",
    b"input_tokens": "prompt_tokens",
    b"completion_tokens": "output_tokens",
    b"output_tokens": "output_tokens",
}
_BESIDE_INPUT = (b"cache_read_input_tokens", b"cache_creation_input_tokens")
_COUNT = re.compile(rb'"(%b)"\s*:\s*(-?\d{1,20})(?![\w.])' % b"|".join({*_NAMES, *_BESIDE_INPUT}))
_RESPONSE_ID = re.compile(rb'"id"\s*:\s*"([\w.:-]{1,256})"', re.ASCII)


class _Responding(Protocol):
    """A decision, as far as responses concern it."""

    def on_response(self, response_id: str) -> None: ...
    @property
    def _stores_response(self) -> bool: ...


class Reporting(_Responding, Protocol):
    """A decision, as far as its answer concerns it."""

    def on_first_token(self) -> None:
        """Report the first token."""

    def on_tokens(self, n: int) -> None:
        """Report further tokens."""

    def on_complete(
        self, *, cached_tokens: int | None = None, prompt_tokens: int | None = None, output_tokens: int | None = None
    ) -> None:
        """Report the end."""


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
        >>> decision = cachelb.Router(["gpu0"]).select_worker(by_load=True)
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
        {'cached_tokens': 48, 'prompt_tokens': 64}
    """
    counts = {name: int(count) for name, count in _COUNT.findall(tail)}
    found: Usage = {}
    for name, field in _NAMES.items():
        if name in counts:
            found[field] = counts[name]
    if (own := counts.get(b"input_tokens")) is not None:
        found["prompt_tokens"] = own + sum(max(0, counts.get(name, 0)) for name in _BESIDE_INPUT)
    return found


class ResponseId:
    """Finds the id of a stored response in an answer that passes, and reports it to the decision.

    `Decision.track` has one of its own; this is for gateways that call `on_first_token` and the like themselves.

    Example:
        >>> import cachelb
        >>> from cachelb.answers import ResponseId
        >>> router = cachelb.Router(["gpu0", "gpu1"], seed=1)
        >>> first = router.select_worker(body=b'{"input": "Hello!"}', path="/v1/responses")
        >>> response_id = ResponseId(first)
        >>> for chunk in (b'{"id":"res', b'p_1","object":"response", ...'):
        ...     response_id.feed(chunk)
        >>> body = b'{"input": "And now?", "previous_response_id": "resp_1"}'
        >>> router.select_worker(body=body, path="/v1/responses").worker == first.worker
        True
    """

    def __init__(self, decision: _Responding) -> None:
        """Look for nothing unless the decision is about a request to the responses API.

        Args:
            decision: A decision, or a pair of them.
        """
        self._decision = decision
        self._head = b"" if decision._stores_response else None  # noqa: SLF001 - of this package

    def feed(self, chunk: bytes) -> None:
        """Look at the next bytes of the answer.

        Args:
            chunk: In the order in which they come.
        """
        if self._head is None:
            return
        self._head += bytes(chunk[:HEAD_BYTES])
        found = _RESPONSE_ID.search(self._head)
        if found is not None:
            self._decision.on_response(found[1].decode())
        if found is not None or len(self._head) >= HEAD_BYTES:
            self._head = None


class PassingAnswer:
    """Reports an answer to its decision while the bytes pass by on their way to the client.

    For gateways that see the bytes but do not iterate over them; `Decision.track` does the same for those that do.

    Example:
        >>> import cachelb
        >>> from cachelb.answers import PassingAnswer
        >>> router = cachelb.Router(["gpu0"], seed=1)
        >>> decision = router.select_worker(tokens=range(64))
        >>> answer = PassingAnswer(decision)
        >>> for chunk in (b"data: {...}", b'data: {"usage":{"prompt_tokens":64,"completion_tokens":2}}'):
        ...     answer.feed(chunk)
        >>> answer.end()
        >>> router.records.recent(1)[0].output_tokens
        2
    """

    def __init__(self, decision: Reporting, *, is_stream: bool = True) -> None:
        """Report nothing yet.

        Args:
            decision: A decision, or a pair of them.
            is_stream: Whether each chunk is a token; else the answer comes at once, in pieces of any size.
        """
        self._decision = decision
        self._is_stream = is_stream
        self._begun = False
        self._tail = b""
        self._response_id = ResponseId(decision)

    def feed(self, chunk: bytes) -> None:
        """Look at the next bytes of the answer.

        Args:
            chunk: In the order in which they come; an empty one is none.
        """
        if chunk and self._is_stream:
            if self._begun:
                self._decision.on_tokens(1)
            else:
                self._begun = True
                self._decision.on_first_token()
        self._response_id.feed(chunk)
        self._tail = (self._tail + chunk)[-TAIL_BYTES:]

    def end(self) -> None:
        """Report that the answer is complete, with the counts at its end."""
        self._decision.on_complete(**read_usage(self._tail))


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
