"""Random dialogues in pairs, to find claims beyond what a template renders equally."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import dataclass, field
from typing import Final

from benches.templates.cells import common
from benches.templates.engine import Engine, RefusedError
from benches.templates.readers import Options
from benches.templates.words import Body, Words, call, message, parts, tools_of

from cachelb.bodies import RequestBodies
from cachelb.descriptions import describe_body

SLACK: Final = 160
"""Bytes of a claim that are no part of a rendering: marks, names of roles, digests, and marks of a template between
texts. Every text is longer."""
_TEXT: Final = 60
"""Words of a text, each of five bytes or more."""
_CHAT: Final = "/v1/chat/completions"


@dataclass(slots=True)
class Result:
    """Counts of pairs."""

    pairs: int = 0
    refused: int = 0
    shared: int = 0
    false: int = 0
    claimed: int = 0
    true: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def found(self) -> float:
        """Part of the true prefixes that is claimed."""
        return self.claimed / self.true if self.true else 1.0


def fuzz(engine: Engine, options: Options, *, pairs: int, seed: int) -> Result:
    """Compare so many pairs of dialogues."""
    talks = Talks(random.Random(f"{seed} {engine.name}"))
    bodies = RequestBodies(**options)
    result = Result()
    while result.pairs + result.refused < pairs:
        one = talks.talk()
        other = talks.changed(one)
        try:
            rendered = [engine.render(_CHAT, body) for body in (one, other)]
        except RefusedError:
            result.refused += 1
            continue
        result.pairs += 1
        read = [describe_body(json.dumps(body).encode(), path=_CHAT, bodies=bodies) for body in (one, other)]
        claimed = 4 * read[0].shared_with(read[1], block_size=1).tokens
        true = common(*rendered)
        most = true + min(_hidden(body, text) for body, text in zip((one, other), rendered, strict=True))
        result.true += true
        result.claimed += min(claimed, true)
        result.shared += claimed > SLACK
        if claimed > most + SLACK:
            result.false += 1
            if len(result.examples) < 3:
                result.examples.append(f"claimed {claimed}, rendered {true}\n{_short(one)}\n{_short(other)}")
    return result


def _hidden(body: Body, rendered: bytes) -> int:
    """Bytes of the texts that a template leaves out."""
    text = rendered.decode()
    return sum(len(each) for each in _texts(body) if each.split(" ", 1)[0] not in text)


def _texts(value: object) -> list[str]:
    """Find the texts of a body; the arguments of calls are JSON in a text."""
    if isinstance(value, str):
        return [value] if " " in value else []
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for each in values for text in _texts(each)]


def _short(body: Body) -> str:
    """Write a body with the first word of each text."""
    text = json.dumps(body)
    for each in sorted(_texts(body), key=len, reverse=True):
        text = text.replace(json.dumps(each)[1:-1], json.dumps(each.split(" ", 1)[0])[1:-1])
    return text


class Talks:
    """Dialogues in the orders that clients send, and one change of each."""

    def __init__(self, luck: random.Random) -> None:
        self._luck = luck
        self._words = Words("z")

    def talk(self) -> Body:
        """Make a dialogue that ends where an answer is asked for."""
        luck = self._luck
        messages = [message("system", self._text()) for _ in range(luck.choices((0, 1, 2), (2, 6, 2))[0])]
        tools = tools_of(self._words.functions(luck.choice((0, 1, 2))))
        messages += self._question()
        for _ in range(luck.randint(0, 4)):
            messages += self._turn(tools)
        return {"messages": messages, "tools": tools}

    def changed(self, talk: Body) -> Body:
        """Make the next request of a dialogue, or one with a change."""
        luck = self._luck
        other = copy.deepcopy(talk)
        messages, tools = other["messages"], other["tools"]
        at = luck.randrange(len(messages))
        match luck.randrange(10):
            case 0 | 1 | 2:
                messages += self._turn(tools)
            case 3:
                messages += [message("assistant", self._text()), *self._question()]
            case 4:
                messages += self._question()
            case 5:
                messages[at]["content"] = self._text()
            case 6:
                tools[:] = [*tools, *tools_of(self._words.functions(1))] if luck.random() < 0.5 else tools[1:]
            case 7:
                messages.insert(at, message(luck.choice(("system", "developer")), self._text()))
            case 8:
                answers = [each for each in messages if each["role"] == "assistant"]
                if answers:
                    answer = luck.choice(answers)
                    if answer.pop("reasoning_content", None) is None:
                        answer["reasoning_content"] = self._text()
            case _:
                cut = [number for number, each in enumerate(messages) if each["role"] in ("user", "tool")]
                del messages[luck.choice(cut) + 1 :]
        return other

    def _turn(self, tools: list[Body]) -> list[Body]:
        """Make an answer and what follows it."""
        luck = self._luck
        answer = message("assistant", self._text())
        if luck.random() < 0.5:
            answer["reasoning_content"] = self._text()
        elif luck.random() < 0.2:
            answer["content"] = f"<think>\n{self._text()}\n</think>\n\n{answer['content']}"
        after: list[Body] = []
        if tools and luck.random() < 0.6:
            if luck.random() < 0.4:
                answer["content"] = None
            name = luck.choice(tools)["function"]["name"]
            calls = [call(name, self._words.arguments(), luck.randrange(10**8)) for _ in range(luck.choice((1, 2)))]
            answer["tool_calls"] = calls
            after = [message("tool", self._text(), tool_call_id=each["id"]) for each in calls]
        if not after or luck.random() < 0.25:
            after += self._question()
        return [answer, *after]

    def _question(self) -> list[Body]:
        luck = self._luck
        content = parts(self._text(), self._text()) if luck.random() < 0.1 else self._text()
        asked = [message("user", content)]
        if luck.random() < 0.15:
            asked.insert(luck.randrange(2), message(luck.choice(("system", "developer")), self._text()))
        return asked

    def _text(self) -> str:
        return self._words.text(_TEXT)
