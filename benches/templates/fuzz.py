"""Random dialogues in pairs, to find claims beyond the text that a template renders equally."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Final

from benches.templates.cells import common
from benches.templates.engine import Engine, RefusedError
from benches.templates.readers import Options
from benches.templates.spellings import SPELLINGS
from benches.templates.words import Body, Words, call, message, parts, tools_of

from cachelb._core import read_body
from cachelb.bodies import RequestBodies

_TEXT: Final = 60
"""Words of a text."""
_RUNS: Final = re.compile(rb"z\d+(?: z\d+){9,}")
"""Texts within a prompt or a body, whatever is around them."""


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
        path, spelled = talks.spelling()
        pair = spelled(one), spelled(other)
        try:
            rendered = [engine.render(path, body) for body in pair]
        except RefusedError:
            result.refused += 1
            continue
        result.pairs += 1
        claimed, true, false = _compare(path, pair, rendered, bodies)
        result.true += true
        result.claimed += min(claimed, true)
        result.shared += claimed > 0
        if false:
            result.false += 1
            if len(result.examples) < 3:
                result.examples.append(f"{path}: {false} are claimed\n{_short(pair[0])}\n{_short(pair[1])}")
    return result


def _compare(
    path: str, pair: tuple[Body, Body], rendered: list[bytes], bodies: RequestBodies
) -> tuple[int, int, list[str]]:
    """Count texts that are claimed and that are shared as rendered; name those that are claimed and are not."""
    options = asdict(bodies)
    one, other = (read_body(options, json.dumps(body).encode(), path, ())["prompt"] for body in pair)
    whole = set(_RUNS.findall(one))  # the last one that is claimed may be a part of its text
    claimed = [text for text in _RUNS.findall(one[: common(one, other)]) if text in whole]
    shared = set(_RUNS.findall(rendered[0][: common(*rendered)]))
    unequal = [text for text in claimed if text not in shared and any(text in prompt for prompt in rendered)]
    false = [text.split(b" ", 1)[0].decode() for text in unequal]
    return len(claimed), len(shared), false


def _short(body: Body) -> str:
    """Write a body with the first word of each text."""
    return _RUNS.sub(lambda found: found[0].split(b" ", 1)[0], json.dumps(body).encode()).decode()


class Talks:
    """Dialogues in the orders that clients send, and one change of each."""

    def __init__(self, luck: random.Random) -> None:
        self._luck = luck
        self._words = Words("z")

    def spelling(self) -> tuple[str, Callable[[Body], Body]]:
        """Choose an API."""
        return self._luck.choice(list(SPELLINGS.items()))

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
        """Make an answer and the messages after it."""
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
