"""Reading of a request body by a router, and the part of their prompts that two bodies share."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal, TypeAlias

from cachelb._core import read_body
from cachelb.bodies import Headers, RequestBodies
from cachelb.common.arguments import whole

Place: TypeAlias = Literal[
    "kind", "model", "adapter", "salt", "media", "options", "tools", "system", "message", "prompt"
]
"""Where the prompts of two bodies differ first, as `SharedPrompt.where` has it."""

_TOKEN_BYTES: Final = 4
"""Bytes of a token id, and by estimate of the text of a token."""
_NAMESPACE: Final[tuple[tuple[str, Place], ...]] = (
    ("model", "model"),
    ("adapter", "adapter"),
    ("salt", "salt"),
    ("other_media", "media"),
)
"""Fields that keep equal prompts apart, each with its name as a place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyDescription:
    """A request body as a router reads it; `describe_body` makes one.

    Attributes:
        path: The path by which it was read.
        kind: As in `BodyStats.kinds`, or "encoded" for a body with a `content-encoding`, which is not read.
        messages: Messages, or items of the input of a response.
        parts: Parts of their contents.
        media: Those of them that are images and the like.
        prompts: Prompts of a body of texts or token ids; a chat is one.
        prompt_bytes: Bytes of the longest prompt in canonical form, four for each token id; 0 without a prompt.
        tokens: Tokens of all prompts, times `answers`; those of text are estimated from bytes.
        answers: Answers to each prompt.
        stream: Whether the answer is to be streamed.
        model: Name of the model.
        adapter: Name of the adapter.
        max_output_tokens: The most tokens to generate.
        expected_output_tokens: Tokens that the client expects.
        priority: Priority as the router takes it from this client, the higher first.
        convention: How the conversation is named, such as "claude-code"; the name itself is not kept.

    Example:
        >>> from cachelb_lab.descriptions import describe_body
        >>> body = describe_body(b'{"prompt": "Hello!", "session_id": "chat-1"}', path="/v1/completions")
        >>> body.kind, body.prompt_bytes, body.tokens, body.convention
        ('text', 6, 2, 'body')
    """

    path: str
    kind: str
    messages: int = 0
    parts: int = 0
    media: int = 0
    prompts: int = 0
    prompt_bytes: int
    tokens: int
    answers: int = 1
    stream: bool = False
    model: str | None
    adapter: str | None
    max_output_tokens: int | None
    expected_output_tokens: int | None
    priority: int
    convention: str | None
    _read: dict[str, Any] = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes, for JSON."""
        return {name: getattr(self, name) for name in _SHOWN}

    def shared_with(self, other: BodyDescription, *, block_size: int = 16) -> SharedPrompt:
        """Find how much of the prompt of another body a router takes for the same as the prompt of this one.

        Args:
            other: The other body, read with the same `RequestBodies`.
            block_size: Tokens per block, as in the router.

        Returns:
            The whole blocks that are shared, and where the first difference lies.

        Raises:
            TypeError: `block_size` is not an integer.
            ValueError: `block_size` is not positive.

        Example:
            >>> from cachelb_lab.descriptions import describe_body
            >>> text = "Answer in one sentence. " * 20
            >>> one, other = (
            ...     describe_body(f'{{"messages": [{{"role": "user", "content": "{text}{end}"}}]}}'.encode())
            ...     for end in ("Why?", "How?")
            ... )
            >>> shared = one.shared_with(other)
            >>> shared.tokens, shared.where, shared.message
            (112, 'message', 1)
        """
        whole("block_size", block_size, 1, 1 << 20)
        here, there = self._read, other._read
        prompts = here["prompt"], there["prompt"]
        if self.kind != other.kind or not all(prompts):
            return SharedPrompt(0, 0, 0.0, "kind", None)
        for name, place in _NAMESPACE:
            if here[name] != there[name]:
                return SharedPrompt(0, 0, 0.0, place, None)
        common = _common(*prompts)
        blocks = common // (_TOKEN_BYTES * block_size)
        share = blocks * block_size * _TOKEN_BYTES / len(prompts[1])
        where, message = (None, None) if prompts[0] == prompts[1] else _place(here, there, common)
        return SharedPrompt(blocks, blocks * block_size, share, where, message)


_SHOWN: Final = tuple(each.name for each in fields(BodyDescription) if each.repr)


@dataclass(frozen=True, slots=True)
class SharedPrompt:
    """The shared part of two bodies, as `BodyDescription.shared_with` finds it.

    Attributes:
        blocks: Whole blocks from the beginning.
        tokens: Tokens of these blocks; those of text are estimated from bytes.
        share: Part of the other body's prompt, 0 to 1. The end of a prompt that fills no block does not count.
        where: The first difference: another "kind" of body, or no prompt; "model", "adapter", "salt" or "media" beside
            the prompt, which keep prompts apart; "options" that templates read, such as `chat_template_kwargs`, or
            system messages that may move to the first; "tools"; "system" text beside the messages; a "message"; the
            "prompt" of a body without messages. None if the prompts are equal.
        message: Number of that message in the other body, from 1.

    Example:
        >>> from cachelb_lab.descriptions import describe_body
        >>> one = describe_body(b'{"messages": [{"role": "user", "content": "Hello!"}]}')
        >>> other = describe_body(b'{"messages": [{"content": [{"type": "text", "text": "Hello!"}], "role": "user"}]}')
        >>> one.shared_with(other).where is None
        True
    """

    blocks: int
    tokens: int
    share: float
    where: Place | None
    message: int | None


def describe_body(
    body: bytes,
    *,
    path: str = "/v1/chat/completions",
    headers: Headers = (),
    bodies: RequestBodies | None = None,
) -> BodyDescription:
    """Read a request body as a router does, and count nothing.

    Args:
        body: The body.
        path: The path of the request, which decides the kind of the body.
        headers: Its headers.
        bodies: How it is read; None for the defaults.

    Returns:
        The body as a router reads it.

    Raises:
        BodyError: It cannot be read, whether or not `bodies` is strict; a router that is not routes it by load.
        TypeError: An argument has the wrong type.
        ValueError: A setting of `bodies` is out of range.

    Example:
        >>> from cachelb_lab.descriptions import describe_body
        >>> describe_body(b'{"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8}').max_output_tokens
        8
    """
    read = read_body(asdict(bodies or RequestBodies()), body, path, headers)
    known = {name: read[name] for name in _SHOWN if name in read}
    return BodyDescription(path=path, prompt_bytes=len(read["prompt"]), _read=read, **known)


def _common(one: bytes, other: bytes) -> int:
    """Count the bytes that both begin with."""
    ends = range(1, min(len(one), len(other)) + 1)
    return bisect_left(ends, True, key=lambda end: not other.startswith(one[:end]))  # noqa: FBT003 - what is searched


def _place(here: dict[str, Any], there: dict[str, Any], at: int) -> tuple[Place, int | None]:
    """Name the part of two prompts that lies at the first difference, `at`."""
    if here["kind"] != "chat":
        return "prompt", None
    both = here, there
    if any(at < each["beside"][0][1] for each in both):
        tools = [each["prompt"][slice(*each["beside"][1])] for each in both]
        return "options" if tools[0] == tools[1] else "tools", None
    counts = {bisect_right(each["ends"], at) for each in both}
    # Where a message of one goes on, the tools that follow it in the other are no difference yet.
    if len(counts) == 1 and any(start <= at < end for start, end in (each["beside"][1] for each in both)):
        return "tools", None
    before = min(counts)
    if not before and any(each["has_system"] for each in both):
        return "system", None
    return "message", before + 1 - there["has_system"]
