"""What a chat template does with tools, reasoning and system messages, from what it renders."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from operator import eq
from typing import Any, Final, Protocol, TypeAlias

from cachelb.tokenizers.templates import ChatTemplates

_Texts: TypeAlias = tuple[str, ...]
"""Texts of one part of a chat, in any order."""

_SYSTEM: Final[tuple[str | None, ...]] = (None, "Kestrels hover.", "Kestrels dive.")
_TOOLS: Final[tuple[str | None, ...]] = (None, "heron", "heroine")
_TALK: Final[tuple[str, ...]] = ("Do magpies sing?", "Rather seldom.", "Do robins?", "Every morning.", "Do owls?")
_REASONING: Final = "Thought {}"
_INLINE: Final = "Answer like a poet."


_PLACES: Final = (
    ("after-system", "first"),
    ("before-system", "first"),
    ("last-user", "first"),
    ("last-user", "last-user"),
    ("last-user", "last-message"),
)
"""Places of tools, and where system text is: in the last user message also if that comes last only."""


class Renders(Protocol):
    """Renders chats as text, as `HfTokenizer.render` does."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,  # noqa: FBT001, FBT002 - the name and place that every tokenizer has
    ) -> str:
        """Render a chat. Raises ValueError if the template refuses it."""
        ...


def probe_template(template: str | Renders) -> dict[str, Any]:
    """Find the options of `RequestBodies` that fit a chat template, by rendering a few dozen small chats.

    An option is set only if all chats agree with it: requests that a router then takes for equal up to some place are
    rendered equal up to there. Otherwise, and where the template refuses a chat, the default stays, which costs hits
    at most. Options of a request, such as `chat_template_kwargs`, are not varied: with others than its own a
    request shares nothing.

    Args:
        template: A template in Jinja, or an object with a `render` such as an `HfTokenizer`, which has the special
            tokens and the second template for tools that some models come with.

    Returns:
        `tools_place`, `keeps_reasoning` and `inline_system`.

    Raises:
        ModuleNotFoundError: A text is given and Jinja is not installed.
        ValueError: The text is no valid template.

    Example:
        >>> from cachelb import RequestBodies
        >>> from cachelb.tokenizers import probe_template
        >>> found = probe_template("{{ tools }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
        >>> found
        {'tools_place': 'before-system', 'keeps_reasoning': False, 'inline_system': 'in-place'}
        >>> RequestBodies(engine="vllm", **found).tools_place
        'before-system'
    """
    renders = ChatTemplates(template, None) if isinstance(template, str) else template
    return {
        "tools_place": next(
            (place for place, system in _PLACES if _agrees(renders, _with_tools(place, system))), "unknown"
        ),
        "keeps_reasoning": _agrees(renders, _with_reasoning()),
        "inline_system": "in-place" if _agrees(renders, _with_inline_system()) else "merged",
    }


class _Chat:
    """A chat to be rendered, and the texts of its parts in the order in which they are expected."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.tools: list[dict[str, Any]] | None = None
        self.texts: list[_Texts] = []

    def add(self, role: str, text: str, **fields: str) -> None:
        self.messages.append({"role": role, "content": text, **fields})
        self.texts += [(each,) for each in (*dict.fromkeys(fields.values()), text)]


def _agrees(renders: Renders, chats: Iterator[_Chat]) -> bool:
    """Whether texts of each chat are rendered in order, once each, and two chats alike up to where theirs differ."""
    rendered: list[tuple[str, list[_Texts], list[int]]] = []
    for chat in chats:
        try:
            asks = chat.messages[-1]["role"] == "user"
            whole = renders.render(chat.messages, chat.tools, asks)
        except ValueError:
            return False
        if any(whole.count(text) != 1 for texts in chat.texts for text in texts):
            return False
        starts = [min(whole.index(text) for text in texts) for texts in chat.texts]
        ends = [max(whole.index(text) + len(text) for text in texts) for texts in chat.texts]
        if any(end > start for end, start in zip(ends, starts[1:], strict=False)):
            return False
        rendered.append((whole, chat.texts, ends))
    for (one, texts, ends), (other, others, _) in itertools.combinations(rendered, 2):
        same = sum(itertools.takewhile(bool, map(eq, texts, others)))
        if same and not other.startswith(one[: ends[same - 1]]):
            return False
    return True


def _with_tools(place: str, system_place: str) -> Iterator[_Chat]:
    """Make chats with and without system message and tools, which are expected at these places."""
    for system, name, turns in itertools.product(_SYSTEM, _TOOLS, (1, 3, 4)):
        chat = _Chat()
        if system is not None:
            chat.add("system", system)
        if system_place != "first":
            chat.texts.clear()
        at = {"before-system": 0, "after-system": len(chat.texts)}.get(place)
        for number, text in enumerate(_TALK[:turns]):
            chat.add("assistant" if number % 2 else "user", text)
        if at is None:
            at = len(chat.texts) - (2 if turns % 2 == 0 else 1)
        if system is not None and (system_place == "last-user" or (system_place == "last-message" and turns % 2)):
            chat.texts.insert(at, (system,))
        if name is not None:
            chat.tools = [_tool(name)]
            chat.texts.insert(at, tuple(f"{name}_{part}" for part in ("tool", "does", "argument", "means")))
        yield chat


def _tool(name: str) -> dict[str, Any]:
    """Make a tool whose texts are its own."""
    argument = {"type": "string", "description": f"{name}_means"}
    parameters = {"type": "object", "properties": {f"{name}_argument": argument}}
    function = {"name": f"{name}_tool", "description": f"{name}_does", "parameters": parameters}
    return {"type": "function", "function": function}


def _with_reasoning() -> Iterator[_Chat]:
    """Make a chat that grows, with reasoning that is expected to stay."""
    for turns in range(1, len(_TALK) + 1):
        chat = _Chat()
        for number, text in enumerate(_TALK[:turns]):
            if number % 2:
                thought = _REASONING.format(number)
                chat.add("assistant", text, reasoning=thought, reasoning_content=thought, thinking=thought)
            else:
                chat.add("user", text)
        yield chat


def _with_inline_system() -> Iterator[_Chat]:
    """Make chats that grow, with and without a system message among the others, which is expected to stay there."""
    for system, inline, turns in itertools.product(_SYSTEM, (None, _INLINE), (2, 3)):
        chat = _Chat()
        if system is not None:
            chat.add("system", system)
        for number, text in enumerate(_TALK[:turns]):
            if number == 2 and inline is not None:  # noqa: PLR2004 - before the second user message
                chat.add("system", inline)
            chat.add("assistant" if number % 2 else "user", text)
        yield chat
