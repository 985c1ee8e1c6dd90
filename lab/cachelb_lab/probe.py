"""Finds where a chat template puts tools, reasoning and system messages, from its renderings."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

from cachelb._core import read_body
from cachelb.bodies import RequestBodies
from cachelb.tokenizers.templates import ChatTemplates

__all__ = ["probe_template"]

_log = logging.getLogger("cachelb.tokenizers")

_Values: TypeAlias = tuple[str | bool | None, ...]
_Prefix: TypeAlias = tuple[str | None, ...]
_Dialogues: TypeAlias = Callable[[], Iterator[str]]
CHOICES: Final[dict[str, _Values]] = {
    "tools_place": ("after-system", "before-system", "last-user", "none"),
    "keeps_reasoning": (True, False, "empty-thought"),
    "inline_system": ("in-place", "merged", "last-only", "last-user"),
}
"""Values of options, the likely ones first."""
_CAUTIOUS: Final[dict[str, _Values]] = {
    "tools_place": (None, "after-system", "before-system", "last-user"),
    "keeps_reasoning": (False, True),
    "inline_system": ("merged", "in-place"),
}
"""Values of options, the ones that claim less first; None is left out."""
_SPECIAL: Final = {f"{name}_token": f"<{name}>" for name in ("bos", "eos", "pad", "unk")}

_HEADS: Final = ("", "S", "s", "Ss", "d", "Sd")
_TOOLS: Final = ("", "1", "2", "12")
_BODIES: Final = ("q", "qaq", "qAq", "qaqAq", "qAqaq", "qcf", "qCf", "qCfq", "qsq", "qqaq")
_TURNS: Final = tuple(
    answer + then
    for answers, others in (("aAT", ("q", "sq", "qs", "dq")), ("cCnm", ("f", "fq", "fs", "fd")))
    for answer, then in itertools.product(answers, others)
)
_NEXT: Final = ("aq", "Aq", "Tq", "Asq", "cf", "Cf", "nfq", "mf")
"""A dialogue is a digit for each tool and a letter for each message: system `S` and `s`, developer `d`, question `q`;
answer `a`, with a thought `A`, with one in its text `T`; call `c`, with a thought `C`, with that alone `n`, two calls
`m`; their results `f`."""
_AGENTS: Final = (
    *("1SqCfCfcfAqCfnfaqcfCfAqCf", "1sqCfnfAqAqCf", "1SqcfcfaqcfcfaqcfCfaqcf", "1SqcfmfcfCfmf", "1SqsCfscfsAqsCfs"),
    *("1SdqCfcfdnfAqdCfCf", "1sdqcfCfaqdcf", "12SsqCfcfAqcfCf", "2SqCfcfAqcf", "23SqCfcfAqCf", "SqaqAqaqTqAqTqaq"),
)
"""Dialogues of agents."""


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


def probe_template(template: str | Renders, *, match: Literal["certain", "likely"] = "certain") -> dict[str, Any]:
    """Find the options of `RequestBodies` that fit a chat template, by rendering small chats in many orders.

    Chats that the template refuses are left out, as engines refuse them; inline system messages that it refuses are
    moved to the front first, as vLLM does. Options of a request, such as `chat_template_kwargs`, are not varied: with
    others than its own a request shares nothing.

    Args:
        template: A template in Jinja, or an object with a `render` such as an `HfTokenizer`, which has the special
            tokens and the second template for tools that some models come with.
        match: "certain" for the options under which no chat has a false match and most are matched; "likely" for the
            layout that fits dialogues of agents best, of which a false match costs twice a missed one.

    Returns:
        `tools_place`, `keeps_reasoning` and `inline_system`, with `match="certain"` if that was asked for. An option
        that makes no difference to the chats, or has no certain value, is left out and logged.

    Raises:
        ModuleNotFoundError: A text is given and Jinja is not installed.
        ValueError: The text is no valid template, or `match` is neither.

    Example:
        >>> from cachelb import RequestBodies
        >>> from cachelb_lab.probe import probe_template
        >>> template = "{{ tools }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
        >>> found = probe_template(template, match="likely")
        >>> found
        {'tools_place': 'before-system', 'keeps_reasoning': True, 'inline_system': 'in-place'}
        >>> RequestBodies(engine="vllm", **found).tools_place
        'before-system'
    """
    renders = ChatTemplates(template, _SPECIAL) if isinstance(template, str) else template
    if match not in _KINDS:
        raise ValueError(f"match must be 'certain' or 'likely', got {match!r}")
    fixed, choices, dialogues, rate = _KINDS[match]
    chats = _rendered(renders, dialogues(), 2 if match == "certain" else 1)
    scores = {}
    for values in itertools.product(*choices.values()):
        options: dict[str, Any] = {
            name: value for name, value in zip(choices, values, strict=True) if value is not None
        }
        scores[values] = rate(_compared(chats, RequestBodies(engine="vllm", **fixed, **options)))
    best = max(scores, key=lambda values: scores[values])
    found = dict(fixed)
    for at, (name, value) in enumerate(zip(choices, best, strict=True)):
        others = [scores[(*best[:at], other, *best[at + 1 :])] for other in choices[name] if other != value]
        if value is None or (value == choices[name][0] and scores[best] in others):
            _log.info("the chat template does not show the %s %s", match, name)
        else:
            found[name] = value
    return found


class _Chat(NamedTuple):
    """A chat: its body, the texts of its parts, and its prompts by ways in which engines treat developer messages."""

    body: bytes
    texts: list[str]
    prompts: list[str]


class _Count(NamedTuple):
    """Texts of a chat: all, those that earlier prompts share, those of these that are claimed, and other claims."""

    texts: int
    true: int
    found: int
    false: int


def _every() -> Iterator[str]:
    """Make dialogues with every head, and with every order of two turns."""
    yield from map("".join, itertools.product(_TOOLS, _HEADS, _BODIES))
    yield from map("".join, itertools.product(("1Sq",), _TURNS, ("", *_NEXT)))


def _agents() -> Iterator[str]:
    """Make the requests of agents: all beginnings of their dialogues that an answer follows, and whole ones."""
    for dialogue in _AGENTS:
        ends = zip(dialogue, dialogue[1:] + "a", strict=True)
        yield from (dialogue[: at + 1] for at, (end, then) in enumerate(ends) if end in "Ssdqf" and then in "aATcCnm")


def _rendered(renders: Renders, dialogues: Iterable[str], ways: int) -> list[_Chat]:
    """Render dialogues in so many ways; those that the template refuses are left out."""
    chats = []
    for dialogue in dialogues:
        numbers = [code for code in dialogue if code.isdecimal()]
        messages, texts = _messages(dialogue[len(numbers) :])
        tools = [_tool(number) for number in numbers]
        if prompts := _prompts(renders, messages, tools):
            body = {"messages": [_sent(message) for message in messages], "tools": tools}
            chats.append(_Chat(json.dumps(body).encode(), [*texts, *(f"does{n};" for n in numbers)], prompts[:ways]))
    return chats


def _prompts(renders: Renders, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> list[str]:
    """Render a chat with developer messages where they are, and gathered with the system messages, as of vLLM 0.33."""

    def attempt(messages: list[dict[str, Any]]) -> str | None:
        with contextlib.suppress(ValueError):
            return renders.render(messages, tools or None)
        return None

    plain = [message | {"role": "system"} if message["role"] == "developer" else message for message in messages]
    system = [message["content"] for message in plain if message["role"] == "system"]
    front = [{"role": "system", "content": "\n\n".join(system)}] if system else []
    gathered = [*front, *(message for message in plain if message["role"] != "system")]
    first = attempt(messages)
    if plain != messages and not (first and all(text in first for text in system)):
        first = attempt(plain)
    first = first or attempt(gathered)
    return [first, (plain != messages and attempt(gathered)) or first] if first else []


def _messages(dialogue: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Make the messages of a dialogue, and the texts of their parts: equal beginnings of dialogues have equal ones."""
    messages: list[dict[str, Any]] = []
    texts: list[str] = []
    calls: list[str] = []
    numbers: Counter[str] = Counter()

    def text(name: str) -> str:
        texts.append(f"{name}{numbers[code]}{code};")
        return texts[-1]

    for code in dialogue:
        numbers[code] += 1
        if code in "Ss":
            texts.append(f"system{numbers['S'] + numbers['s']};")  # begins as another system text does
            messages.append({"role": "system", "content": f"{texts[-1]} {text('own')}"})
        elif code in "dq":
            messages.append({"role": "developer" if code == "d" else "user", "content": text("asks")})
        elif code == "f":
            messages += [{"role": "tool", "tool_call_id": call, "content": text(f"result{call}")} for call in calls]
        else:
            thought = text("thought") if code in "ATCn" else ""
            message = dict.fromkeys(("reasoning", "reasoning_content", "thinking"), thought) if code in "ACn" else {}
            content = f"<think>\n{thought}\n</think>\n\n" if code == "T" else ""
            message |= {"role": "assistant", "content": content if code == "n" else content + text("answer")}
            # Nine digits, as templates of Mistral want them.
            calls = [f"{ord(code):03}{numbers[code]:05}{at}" for at in range("cCnm".find(code) // 3 + 1)]
            messages.append(
                message | ({"tool_calls": [_call(c, text(f"argument{c}")) for c in calls]} if calls else {})
            )
    return messages, texts


def _call(number: str, argument: str) -> dict[str, Any]:
    function = {"name": "tool1", "arguments": json.dumps({"argument": argument})}
    return {"id": number, "type": "function", "function": function}


def _tool(number: str) -> dict[str, Any]:
    argument = {"type": "string", "description": "argument"}
    parameters = {"type": "object", "properties": {"argument": argument}, "required": ["argument"]}
    function = {"name": f"tool{number}", "description": f"does{number};", "parameters": parameters}
    return {"type": "function", "function": function}


def _sent(message: dict[str, Any]) -> dict[str, Any]:
    """Leave out the other names of reasoning."""
    return {name: value for name, value in message.items() if name not in ("reasoning", "thinking")}


def _compared(chats: list[_Chat], bodies: RequestBodies) -> Iterator[_Count]:
    """Compare each chat with those before it, as rendered and as read."""
    settings = asdict(bodies)
    computed: set[_Prefix] = set()
    claims: dict[bytes, set[_Prefix]] = defaultdict(set)
    for chat in chats:
        read = read_body(settings, chat.body, "/v1/chat/completions", ())["prompt"]
        true = found = false = 0
        pairs = []
        for text in chat.texts:
            prefix = tuple(
                prompt[: at + len(text)] if (at := prompt.find(text)) >= 0 else None for prompt in chat.prompts
            )
            at = read.find(text.encode())
            claim = read[: at + len(text)] if at >= 0 else b""
            pairs.append((prefix, claim))
            known = claims[claim] if claim else set()
            is_true = any(prefix) and prefix in computed
            true += is_true
            found += is_true and prefix in known
            false += bool(known) and prefix not in known
        for prefix, claim in pairs:
            computed.add(prefix)
            claims[claim].add(prefix)
        yield _Count(len(chat.texts), true, found, false)


def _certainty(counts: Iterable[_Count]) -> float:
    """Score a layout by what is found, unless something is false."""
    total = 0
    for count in counts:
        if count.false:
            return -1
        total += count.found
    return total


def _likeness(counts: Iterable[_Count]) -> float:
    """Score a layout by the part of each prompt that is found, less twice that which is false."""
    scores = [(each.found / each.true if each.true else 1.0) - 2 * each.false / each.texts for each in counts]
    return fmean(scores) if scores else 0.0


_KINDS: Final[dict[str, tuple[dict[str, Any], dict[str, _Values], _Dialogues, Callable[[Iterable[_Count]], float]]]] = {
    "certain": ({"match": "certain"}, _CAUTIOUS, _every, _certainty),
    "likely": ({}, CHOICES, _agents, _likeness),
}
"""Other options, values of those that are looked for, dialogues and scores, by kind of match."""
