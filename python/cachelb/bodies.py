"""How a router reads request bodies, and what it has read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from cachelb.measure import counter

Headers: TypeAlias = Mapping[str, str] | Mapping[bytes, bytes] | Iterable[tuple[str | bytes, str | bytes]]
"""Headers in the forms of web frameworks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestBodies:
    """What a router knows of the request bodies that it is given, and of the engines that render them.

    The defaults are right for any engine: what some template could render differently is never taken for equal. What is
    known of the engines wins hits.

    Attributes:
        engine: "vllm" or "sglang", by whose rules requests are equal; None keeps apart what one of them tells apart.
        tools_place: Where the chat template renders tools: "after-system", "before-system" or "last-user", before the
            last user message. With "unknown", requests with different tools share nothing.
        keeps_reasoning: Whether the chat template renders the reasoning of every turn, whatever follows it.
        inline_system: "in-place" if the template leaves system messages among the others where they are; "merged" if it
            may move them to the first one.
        max_bytes: Longer bodies are routed by load.
        strict: Raise `BodyError` for a body that cannot be read, instead of routing it by load.
        trust: What clients are trusted with: "priority" lets them raise theirs; otherwise they can only lower it.
        session_headers: Headers of your own that name a session, before all conventions.

    Example:
        >>> import cachelb
        >>> router = cachelb.Router(["gpu0", "gpu1"], bodies=cachelb.RequestBodies(engine="vllm"))
        >>> body = b'{"messages": [{"role": "user", "content": "Hello!"}]}'
        >>> with router.select_worker(body=body, path="/v1/chat/completions", headers={}) as decision:
        ...     decision.reason
        'short-prompt'
    """

    engine: Literal["vllm", "sglang"] | None = None
    tools_place: Literal["unknown", "after-system", "before-system", "last-user"] = "unknown"
    keeps_reasoning: bool = False
    inline_system: Literal["merged", "in-place"] = "merged"
    max_bytes: int = 16 << 20
    strict: bool = False
    trust: tuple[Literal["priority"], ...] = ()
    session_headers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BodyStats:
    """Counters of requests with `body=` or `headers=`; dry runs and retries are not among them.

    Attributes:
        kinds: Bodies that were read, by what they hold: "chat", "text", "tokens", "continuation" of a response,
            "pooling", "load-only", "audio", "unknown".
        errors: Bodies that could not be read, by `BodyError.kind`.
        conventions: Requests of a known conversation, by the convention that names it, such as "claude-code".
        encoded: Bodies with a `content-encoding`, which are not read.
        bad_ids: Names of conversations that were empty, longer than 256 bytes, or had control characters.

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
