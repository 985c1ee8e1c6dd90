"""Transcripts of an agent that speaks the responses API, in the shape of Codex."""

from __future__ import annotations

import copy
import json
import random

from benches.templates.words import Body, Words

Sessions = list[list[Body]]


def _said(role: str, text: str) -> Body:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def _play(
    words: Words, luck: random.Random, *, sessions: int, requests: int, developers: bool, calls: tuple[int, ...] = (1,)
) -> Sessions:
    functions = words.functions(7)
    instructions = words.text(1300)
    permissions = words.text(200)
    played = []
    for _ in range(sessions):
        items = [_said("developer", permissions)] if developers else []
        items += [_said("user", words.text(90)), _said("user", words.text(80))]
        bodies: list[Body] = []
        for number in range(requests):
            if developers and number % 3 == 2:
                items.append(_said("developer", words.text(luck.randint(8, 60))))
            bodies.append(
                {
                    "model": "m",
                    "instructions": instructions,
                    "input": copy.deepcopy(items),
                    "tools": [{"type": "function", "strict": False, **function} for function in functions],
                    "tool_choice": "auto",
                    "parallel_tool_calls": True,
                    "store": False,
                    "stream": True,
                }
            )
            thought = {"type": "reasoning_text", "text": words.text(luck.randint(40, 150))}
            if luck.random() < 0.85:
                items.append({"type": "reasoning", "id": words.name(), "summary": [], "content": [thought]})
            if number % 5 == 4:
                items += [_said("assistant", words.text(90)), _said("user", words.text(60))]
                continue
            if luck.random() < 0.4:
                items.append(_said("assistant", words.text(30)))
            for _ in range(luck.choice(calls)):
                fields = {"call_id": words.call_id(), "name": luck.choice(functions)["name"]}
                items.append({"type": "function_call", **fields, "arguments": json.dumps(words.arguments())})
            called = [item["call_id"] for item in items if item["type"] == "function_call"]
            answered = {item["call_id"] for item in items if item["type"] == "function_call_output"}
            items += [
                {"type": "function_call_output", "call_id": name, "output": words.text(luck.randint(60, 350))}
                for name in called
                if name not in answered
            ]
        played.append(bodies)
    return played


def codex(words: Words, luck: random.Random) -> Sessions:
    """Play sessions without developer messages."""
    return _play(words, luck, sessions=3, requests=9, developers=False, calls=(1, 1, 2))


def codex_developer(words: Words, luck: random.Random) -> Sessions:
    """Play sessions with a developer message at first and others in mid-conversation."""
    return _play(words, luck, sessions=3, requests=10, developers=True)
