"""Transcripts of an agent that speaks Anthropic's messages, in the shape of Claude Code."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass
from typing import Any

from benches.templates.words import Body, Words, parts

Sessions = list[list[Body]]


@dataclass(slots=True)
class _Client:
    """A client: its head, and the contents of its turns.

    `reminds` puts a system message into every turn, `notes` a text behind some results.
    """

    words: Words
    luck: random.Random
    system: list[str]
    tools: list[Body]
    thinks: bool = True
    reminds: bool = False
    notes: bool = False
    calls: tuple[int, ...] = (1,)

    def body(self, messages: list[Body]) -> Body:
        version = f"2.1.{self.luck.randrange(200, 300)}.{self.luck.randrange(4096):03x}"
        line = f"x-anthropic-billing-header: cc_version={version}; cch={self.luck.randrange(1 << 20):05x};"
        system = parts(line, *self.system)
        system[-1]["cache_control"] = {"type": "ephemeral"}
        body = {
            "model": "m",
            "max_tokens": 32_000,
            "system": system,
            "messages": copy.deepcopy(messages),
            "tools": copy.deepcopy(self.tools),
            "stream": True,
        }
        return body | {"thinking": {"type": "enabled", "budget_tokens": 8000}} if self.thinks else body

    def question(self, *, first: bool = False) -> Body:
        words = self.words
        texts = [words.text(self.luck.randint(30, 120))]
        if first:
            texts.insert(0, f"<system-reminder>\n{words.text(150)}\n</system-reminder>\n")
        return {"role": "user", "content": parts(*texts)}

    def answer(self, calls: int) -> Body:
        words, luck = self.words, self.luck
        content: list[dict[str, Any]] = []
        if self.thinks and luck.random() < 0.85:
            content.append({"type": "thinking", "thinking": words.text(luck.randint(40, 160)), "signature": "s"})
        if not calls or luck.random() < 0.6:
            content += parts(words.text(luck.randint(20, 120)))
        for _ in range(calls):
            name = luck.choice(self.tools)["name"]
            content.append({"type": "tool_use", "id": words.call_id(), "name": name, "input": words.arguments()})
        return {"role": "assistant", "content": content}

    def results(self, answer: Body) -> Body:
        words, luck = self.words, self.luck
        content: list[dict[str, Any]] = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": words.text(luck.randint(60, 400))}
            for block in answer["content"]
            if block["type"] == "tool_use"
        ]
        if self.notes and luck.random() < 0.3:
            content += parts(f"<system-reminder>{words.text(12)}</system-reminder>")
        return {"role": "user", "content": content}

    def reminder(self) -> Body:
        return {"role": "system", "content": f"<total_tokens>{self.words.text(6)} tokens left</total_tokens>"}

    def play(self, requests: int, start: list[Body] | None = None) -> tuple[list[Body], list[Body]]:
        """Send requests; return their bodies, and the messages of the next one."""
        messages = [self.question(first=True)] if start is None else list(start)
        bodies = []
        for number in range(requests):
            if self.reminds:
                messages.append(self.reminder())
            bodies.append(self.body(messages))
            ends = number % 4 == 3
            messages.append(answer := self.answer(0 if ends else self.luck.choice(self.calls)))
            messages.append(self.question() if ends else self.results(answer))
        return bodies, messages


def _client(words: Words, luck: random.Random, **options: Any) -> _Client:  # noqa: ANN401 - the fields
    tools = _tools(words, 10)
    return _Client(words, luck, [words.text(12), words.text(1100)], tools, **options)


def _tools(words: Words, amount: int) -> list[Body]:
    return [
        {"name": function["name"], "description": function["description"], "input_schema": function["parameters"]}
        for function in words.functions(amount)
    ]


def _sessions(client: _Client, sessions: int, requests: int) -> Sessions:
    """Play sessions of one client, the end of whose system text is each session's own."""
    head = client.system
    played = []
    for _ in range(sessions):
        client.system = [head[0], f"{head[1]}\n{client.words.text(40)}"]
        played.append(client.play(requests)[0])
    client.system = head
    return played


def reminders(words: Words, luck: random.Random) -> Sessions:
    """Play sessions with a system message among the others in every turn."""
    return _sessions(_client(words, luck, reminds=True, calls=(1, 1, 2)), 3, 10)


def header(words: Words, luck: random.Random) -> Sessions:
    """Play sessions with a billing line, and texts behind some results."""
    return _sessions(_client(words, luck, notes=True, calls=(1, 1, 2)), 3, 10)


def no_thinking(words: Words, luck: random.Random) -> Sessions:
    """Play sessions without thoughts."""
    return _sessions(_client(words, luck, thinks=False), 2, 12)


def subagents(words: Words, luck: random.Random) -> Sessions:
    """Play a session and five sub-agents at once, which share a head that is not that of the session."""
    main = _client(words, luck)
    played = [main.play(10)[0]]
    sub = _Client(words, luck, [main.system[0], words.text(500)], main.tools[:6])
    return [*played, *(sub.play(5)[0] for _ in range(5))]


def compaction(words: Words, luck: random.Random) -> Sessions:
    """Play a session whose messages are replaced by a summary."""
    client = _client(words, luck)
    before, _ = client.play(9)
    after, _ = client.play(6, [{"role": "user", "content": parts(words.text(300))}])
    return [before, after]


def new_tools(words: Words, luck: random.Random) -> Sessions:
    """Play sessions in which a server adds tools, at the end and then in the middle."""
    played = []
    client = _client(words, luck)
    tools = client.tools
    for _ in range(2):
        client.tools = list(tools)
        bodies, messages = client.play(5)
        client.tools = [*tools, *_tools(words, 2)]
        more, messages = client.play(4, messages)
        client.tools = [*tools[:5], *_tools(words, 1), *client.tools[5:]]
        last, _ = client.play(3, messages)
        played.append([*bodies, *more, *last])
    return played
