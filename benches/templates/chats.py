"""Transcripts of agents that speak chat completions."""

from __future__ import annotations

import copy
import random

from benches.templates.words import Body, Words, call, message, parts, tools_of

Sessions = list[list[Body]]


def _body(messages: list[Body], tools: list[Body] | None = None, **fields: object) -> Body:
    body = {"model": "m", "messages": copy.deepcopy(messages), "stream": True, **fields}
    return body | {"tools": tools} if tools else body


def _calls(
    words: Words,
    luck: random.Random,
    tools: list[Body],
    *,
    texts: float = 0.6,
    thinks: float = 0.0,
    lists: bool = False,
    calls: tuple[int, ...] = (1,),
) -> list[Body]:
    """Make an answer with calls, and their results."""
    made = [
        call(luck.choice(tools)["function"]["name"], words.arguments(), luck.randrange(10**8))
        for _ in range(luck.choice(calls))
    ]
    text: object = words.text(luck.randint(15, 60)) if luck.random() < texts else None
    if lists and text is not None:
        text = parts(str(text))
    answer = message("assistant", text, tool_calls=made)
    if luck.random() < thinks:
        answer["reasoning_content"] = words.text(luck.randint(40, 150))
    results = [words.text(luck.randint(60, 400)) for _ in made]
    return [
        answer,
        *(
            message("tool", parts(result) if lists else result, tool_call_id=one["id"])
            for one, result in zip(made, results, strict=True)
        ),
    ]


def openhands(words: Words, luck: random.Random) -> Sessions:
    """Play sessions of one task each, with contents of parts and calls until it is done."""
    tools, system = tools_of(words.functions(6)), words.text(1200)
    played = []
    for _ in range(3):
        messages = [message("system", parts(system)), message("user", parts(words.text(120)))]
        bodies = []
        for _ in range(12):
            bodies.append(_body(messages, tools))
            messages += _calls(words, luck, tools, lists=True)
        played.append(bodies)
    return played


def opencode(words: Words, luck: random.Random) -> Sessions:
    """Play sessions with two leading system messages, of which the second is the session's, and thoughts."""
    tools, system = tools_of(words.functions(9)), words.text(1000)
    played = []
    for _ in range(3):
        messages = [message("system", system), message("system", words.text(120)), message("user", words.text(60))]
        bodies = []
        for number in range(10):
            bodies.append(_body(messages, tools))
            if number % 4 == 3:
                thought = words.text(60)
                messages.append(message("assistant", words.text(80), reasoning_content=thought))
                messages.append(message("user", words.text(50)))
            else:
                messages += _calls(words, luck, tools, thinks=0.85, calls=(1, 1, 2))
        played.append(bodies)
    return played


def cline(words: Words, luck: random.Random) -> Sessions:
    """Play sessions without tools: calls and results are texts, and each user message ends with the environment."""
    system = words.text(1600)
    played = []
    for _ in range(3):
        messages = [message("system", system), message("user", parts(words.text(60), words.text(90)))]
        bodies = []
        for _ in range(10):
            bodies.append(_body(messages))
            messages.append(message("assistant", words.text(luck.randint(40, 120))))
            messages.append(message("user", parts(words.text(luck.randint(60, 400)), words.text(60))))
        played.append(bodies)
    return played


def aider(words: Words, luck: random.Random) -> Sessions:
    """Play sessions whose map of the repository and files follow the history, with a reminder in the last message."""
    system, reminder = words.text(700), words.text(150)
    examples = [message("user", words.text(60)), message("assistant", words.text(120))]
    played = []
    for _ in range(2):
        history: list[Body] = []
        files = words.text(900)
        bodies = []
        for _ in range(8):
            asked = words.text(luck.randint(30, 80))
            overview = [message("user", words.text(300)), message("assistant", "Ok.")]
            content = [message("user", files), message("assistant", "Ok, any changes will be on these files.")]
            last = message("user", f"{asked}\n{reminder}")
            bodies.append(_body([message("system", system), *examples, *history, *overview, *content, last]))
            history += [message("user", asked), message("assistant", words.text(luck.randint(80, 300)))]
        played.append(bodies)
    return played


def copilot(words: Words, luck: random.Random) -> Sessions:
    """Play sessions with several user messages in a row and calls."""
    tools, system = tools_of(words.functions(12)), words.text(900)
    played = []
    for _ in range(3):
        messages = [message("system", system), message("user", words.text(150)), message("user", words.text(120))]
        bodies = []
        for number in range(10):
            bodies.append(_body(messages, tools))
            if number % 5 == 4:
                messages += [message("assistant", words.text(90)), message("user", words.text(100))]
            else:
                messages += _calls(words, luck, tools, texts=0.4, calls=(1, 1, 2))
        played.append(bodies)
    return played


def proxied(words: Words, luck: random.Random) -> Sessions:
    """Play sessions that a proxy made of Anthropic's, with a billing line before the system text."""
    tools, system = tools_of(words.functions(8)), words.text(1100)
    played = []
    for _ in range(2):
        rest = [message("user", parts(words.text(60), words.text(50)))]
        bodies = []
        for number in range(10):
            line = f"x-anthropic-billing-header: cc_version=2.1.281; cch={luck.randrange(1 << 20):05x};"
            bodies.append(_body([message("system", f"{line}\n{system}"), *rest], tools))
            if number % 4 == 3:
                rest += [message("assistant", words.text(80)), message("user", words.text(50))]
            else:
                rest += _calls(words, luck, tools)
        played.append(bodies)
    return played


def thinks_in_text(words: Words, luck: random.Random) -> Sessions:
    """Play sessions of a client that sends back answers as they were streamed, with thoughts in their text."""
    system = words.text(500)
    played = []
    for _ in range(3):
        messages = [message("system", system), message("user", words.text(80))]
        bodies = []
        for _ in range(8):
            bodies.append(_body(messages))
            thought = f"<think>\n{words.text(luck.randint(40, 160))}\n</think>\n\n"
            messages.append(message("assistant", thought + words.text(luck.randint(80, 250))))
            messages.append(message("user", words.text(luck.randint(20, 90))))
        played.append(bodies)
    return played


def some_thoughts(words: Words, luck: random.Random) -> Sessions:
    """Play sessions with tools in which answers come with and without reasoning."""
    tools, system = tools_of(words.functions(4)), words.text(600)
    played = []
    for _ in range(3):
        messages = [message("system", system), message("user", words.text(80))]
        bodies = []
        for number in range(10):
            bodies.append(_body(messages, tools))
            if number % 3 == 2:
                answer = message("assistant", words.text(luck.randint(60, 200)))
                if luck.random() < 0.5:
                    answer["reasoning_content"] = words.text(80)
                messages += [answer, message("user", words.text(60))]
            else:
                messages += _calls(words, luck, tools, thinks=0.5)
        played.append(bodies)
    return played
