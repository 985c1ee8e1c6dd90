"""How a router reads request bodies, and what it has read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from cachelb.common.measure import counter
from cachelb.errors import BodyError

if TYPE_CHECKING:
    from cachelb.types import Tokens


Headers: TypeAlias = Mapping[str, str] | Mapping[bytes, bytes] | Iterable[tuple[str | bytes, str | bytes]]
"""Headers in the forms of web frameworks."""

Renderer: TypeAlias = "Callable[[bytes, str], Tokens]"
"""A function from a body and its path to the token ids that an engine makes of it; `cachelb.renderers` has two."""

MatchBasis: TypeAlias = Literal["tokens", "certain", "learned", "likely"]
"""On what ground a prompt counts as shared, as `Decision.match_basis` has it."""

DECISION_HEADERS: Final = frozenset(
    f"x-cachelb-{name}" for name in ("worker", "prefill-worker", "decision", "reason", "matched-tokens", "kv-source")
)
"""Headers of `Decision.headers`, which a router sends to workers."""

UNTRUSTED_HEADERS: Final = DECISION_HEADERS | {
    "x-gateway-destination-endpoint-subset",  # of the Gateway API's inference extension
    "x-dynamo-worker-instance-id",
    "x-dynamo-prefill-instance-id",
    "x-dynamo-dp-rank",
    "x-dynamo-prefill-dp-rank",
    "x-worker-instance-id",  # Dynamo's older names
    "x-prefill-instance-id",
    "x-dp-rank",
    "x-prefill-dp-rank",
    "x-smg-target-worker",
    "x-data-parallel-rank",  # of vLLM and SGLang
    "x-override-rid",  # of SGLang, like the others of the name
    "x-override-bootstrap-host",
    "x-override-bootstrap-port",
    "x-override-bootstrap-room",
    "x-override-conversation-id",
    "x-override-routed-dp-rank",
    "x-override-disagg-prefill-dp-rank",
    "x-override-priority",
}
"""Headers that name a worker or a rank, or pass for a router's own: strip them from a client's request.

Names are in lower case. Engines and routers behind the gateway obey them, whatever the router has picked.

Example:
    >>> from cachelb.bodies import UNTRUSTED_HEADERS
    >>> headers = {"Authorization": "Bearer key", "X-Data-Parallel-Rank": "1"}
    >>> {name: value for name, value in headers.items() if name.lower() not in UNTRUSTED_HEADERS}
    {'Authorization': 'Bearer key'}
"""

_SPACE = b" \t\r\n"
_NOT_ASCII = 0x80
_OTHER_VALUES = b'"[-0123456789tfn'
"""First bytes of JSON that is no object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestBodies:
    """How a router reads request bodies, and how its engines render them.

    By default chats are matched by the layout that their template most likely has, and what is left at None is learned
    for each model from the cached tokens that engines report. `Decision.match_basis` is the basis of a match.

    Attributes:
        match: "likely" matches what the engine is expected to share. "certain" matches only what it shares whatever its
            template, apart from what is set below, for claims that no engine verifies.
        engine: "vllm" or "sglang"; None takes the engine that the workers' metrics pages name.
        tools_place: Where the chat template renders tools: "after-system", "before-system", "last-user", before
            the last user message, or "none" if it does not.
        keeps_reasoning: Whether the chat template renders the reasoning of every turn, whatever follows it;
            "empty-thought" if it renders that of the last question only, and an empty one in answers without any.
        inline_system: "in-place" if the template leaves system messages among the others where they are; "merged" if it
            moves them to the first one; "last-only" if it renders the last one, at the beginning; "last-user" if it
            renders them in the last message, if that is a user's.
        attribution: "cut" if the engine drops the billing line that Claude Code puts before its system text, as vLLM
            does; "kept" if it renders that.
        max_bytes: Longer bodies are routed by load.
        strict: Raise `BodyError` for a body that is no JSON object, instead of routing it by load.
        trust: Fields trusted from clients: "priority" lets them raise theirs; otherwise they can only lower it.
        session_headers: Headers of your own that name a session, before all conventions.
        renderer: Function from a body and its path to its token ids, for chats and texts without images whose prompt is
            the only one, unless the call has a prompt of its own. It is called in every selection, dry runs and retries
            among them, by the thread that selects. Its exceptions are counted, and the text is matched.
        renderer_min_bytes: Shorter bodies are not rendered.

    Example:
        >>> import cachelb
        >>> router = cachelb.Router(["gpu0", "gpu1"], bodies=cachelb.RequestBodies(engine="vllm"))
        >>> body = b'{"messages": [{"role": "user", "content": "Hello!"}]}'
        >>> with router.select_worker(body=body, path="/v1/chat/completions", headers={}) as decision:
        ...     decision.reason
        'short-prompt'
    """

    match: Literal["likely", "certain"] = "likely"
    engine: Literal["vllm", "sglang"] | None = None
    tools_place: Literal["unknown", "after-system", "before-system", "last-user", "none"] | None = None
    keeps_reasoning: bool | Literal["empty-thought"] | None = None
    inline_system: Literal["merged", "in-place", "last-only", "last-user"] | None = None
    attribution: Literal["cut", "kept"] | None = None
    max_bytes: int = 16 << 20
    strict: bool = False
    trust: tuple[Literal["priority"], ...] = ()
    session_headers: tuple[str, ...] = ()
    renderer: Renderer | None = None
    renderer_min_bytes: int = 0


class BodyReader:
    """Collects a JSON body that arrives in chunks, for gateways that refuse what no router can read.

    A body that is too long, or is no object, is refused at the first byte that shows it, so that a client cannot fill
    memory with it. All else is for the router to find, which reads a whole body faster than a chunk of it arrives. It
    decides by whole bodies only: fields behind the prompt, such as the model or a salt, change what it may match.

    Args:
        max_bytes: The most bytes that a body may have, as in `RequestBodies`.

    Example:
        >>> from cachelb.bodies import BodyReader
        >>> reader = BodyReader(max_bytes=100)
        >>> for chunk in (b'{"prompt": ', b'"Hello!"}'):
        ...     reader.feed(chunk)
        >>> reader.finish()
        b'{"prompt": "Hello!"}'
        >>> BodyReader().feed(b"<html>")
        Traceback (most recent call last):
            ...
        cachelb.errors.BodyError: request body: syntax at byte 0
    """

    __slots__ = ("_begun", "_chunks", "_length", "_max_bytes")

    def __init__(self, *, max_bytes: int = 16 << 20) -> None:
        """Wait for a body."""
        self._max_bytes = max_bytes
        self._chunks: list[bytes] = []
        self._length = 0
        self._begun = False

    def feed(self, chunk: bytes | bytearray | memoryview) -> None:
        """Take the next bytes.

        Args:
            chunk: Any number of bytes, which may change afterwards.

        Raises:
            BodyError: The body is "too-large", "not-object", or a "syntax" error at its first byte. No more of it is
                kept.
            TypeError: The chunk is not bytes.
        """
        if not isinstance(chunk, bytes | bytearray | memoryview):
            raise TypeError(f"chunk must be bytes, not {type(chunk).__name__}")
        chunk = bytes(chunk)
        if self._length + len(chunk) > self._max_bytes:
            raise self._refused("too-large", self._max_bytes)
        if not self._begun and (text := chunk.lstrip(_SPACE)):
            offset = self._length + len(chunk) - len(text)
            if text[:1] != b"{" and 0 < text[0] < _NOT_ASCII:  # others begin UTF-16 or a byte order mark
                raise self._refused("not-object" if text[0] in _OTHER_VALUES else "syntax", offset)
            self._begun = True
        self._length += len(chunk)
        self._chunks.append(chunk)

    def finish(self) -> bytes:
        """Return the body, for `select_worker(body=)` and to be forwarded."""
        self._chunks = [b"".join(self._chunks)]
        return self._chunks[0]

    def _refused(self, kind: str, offset: int) -> BodyError:
        self._chunks.clear()
        return BodyError(kind, offset)


@dataclass(frozen=True, slots=True)
class BodyStats:
    """Counters of requests with `body=`, `messages=` or `headers=`; dry runs and retries are not among them.

    Attributes:
        kinds: Request bodies that were read, by content: "chat", "text", "tokens", "continuation" of a response,
            "pooling", "load-only", "audio", "unknown".
        errors: Request bodies that could not be read, by kind of error.
        conventions: Requests that name their conversation, by the client or header that does, such as "claude-code".
        encoded: Request bodies with a content-encoding; these are routed by load.
        bad_ids: Conversation ids ignored because they were empty, over 256 bytes or held control characters.
        unrendered: Request bodies matched as text because `RequestBodies.renderer` failed or returned no token ids.
        attribution: Bodies with the attribution header of a client before their system text, which differs between
            requests, clients and versions. vLLM drops it.
        layout_switches: Changes of a model's assumed prompt layout, because engines reported other cached tokens.
        layout_unreported: Answers to chats without counts of cached and prompt tokens, which teach no layout.
        volatile_heads: Models whose system text begins with a line that changes while the rest stays equal.
        match_error_tokens: Cached tokens reported "beyond" the expected ones, and expected ones "missing" in reports.

    Example:
        >>> import cachelb
        >>> router = cachelb.Router(["gpu0"])
        >>> router.select_worker(body=b"{}", path="/v1/models", headers={"x-session-id": "s"}).on_complete()
        >>> stats = router.stats().bodies
        >>> stats.kinds, stats.conventions
        ({'unknown': 1}, {'opencode': 1})
    """

    kinds: dict[str, int] = field(metadata=counter("bodies", "{request}", "kind"))
    errors: dict[str, int] = field(metadata=counter("body_errors", "{request}", "kind"))
    conventions: dict[str, int] = field(metadata=counter("identified", "{request}", "convention"))
    encoded: int = field(metadata=counter("encoded_bodies", "{request}"))
    bad_ids: int = field(metadata=counter("bad_ids", "{value}"))
    unrendered: int = field(metadata=counter("unrendered_bodies", "{request}"))
    attribution: int = field(metadata=counter("attribution_bodies", "{request}"))
    layout_switches: int = field(metadata=counter("layout_switches", "{switch}"))
    layout_unreported: int = field(metadata=counter("layout_unreported", "{answer}"))
    volatile_heads: int = field(metadata=counter("volatile_heads", "{text}"))
    match_error_tokens: dict[str, int] = field(metadata=counter("match_error_tokens", "{token}", "direction"))


def settings_of(group: object = None) -> dict[str, Any]:
    """List the fields of a group of settings by name, as the native half reads them; None is `RequestBodies()`."""
    held: Any = RequestBodies() if group is None else group
    return {each.name: getattr(held, each.name) for each in fields(held)}
