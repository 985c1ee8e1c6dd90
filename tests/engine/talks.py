"""Random request bodies of four endpoints, one change of each, and other spellings of the same body."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from copy import deepcopy
from typing import Any

Body = dict[str, Any]

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
WORDS = ("word", "é", '"', "\\", "\n", "\t", "漢", "{}", "<r>", " ", "1.0", "😀")
HEADER = "x-anthropic-billing-header: cch="


class Talks:
    """Random bodies, each text of which has a number of its own.

    Args:
        seed: Decides all of them.
        family: The chat template that renders them.
    """

    path = CHAT
    turns = "messages"
    """The field that holds them."""
    roles: tuple[str, ...] = ("system", "developer", "user", "user", "assistant", "assistant", "tool")
    options: tuple[Body, ...] = (
        {"reasoning_effort": "low"},
        {"tool_choice": "none"},
        {"add_generation_prompt": False},
        {"truncate_prompt_tokens": 40},
        {"truncate_prompt_tokens": 40, "truncation_side": "left"},
        {"truncate_prompt_tokens": 40, "truncation_side": "right"},
        {"documents": [{"title": "a", "text": "b"}]},
        {"temperature": 0.5, "n": 2, "stream": True, "user": "u", "seed": 3},
        {"response_format": {"type": "text"}},
    )
    extras: tuple[Body, ...] = ({"plan": "p"}, {"name": "n"}, {"task": "t"}, {"tool_call_id": "t"}, {"thinking": "#0;"})

    def __init__(self, seed: int, family: str) -> None:
        self.luck = random.Random(seed)
        self.family = family
        self.count = 0
        self.thinks = False

    def chance(self, share: float) -> bool:
        return self.luck.random() < share

    def text(self) -> str:
        self.count += 1
        text = f"#{self.count};" + "".join(self.luck.choices(WORDS, k=self.luck.randint(0, 12)))
        if self.thinks and self.chance(0.1):
            self.thinks = False
            return f"{text}</think>{self.text()}"
        return f"<tool_response>{text}" if self.chance(0.04) else text

    def content_of(self, role: str) -> Any:
        """A content; that of the assistant may have thoughts in it, which templates look for nowhere else."""
        self.thinks = role == "assistant"
        content = self.content()
        self.thinks = False
        return content

    def shuffled(self, fields: Body) -> Body:
        return dict(self.luck.sample(list(fields.items()), len(fields)))

    def arguments(self) -> Body:
        values: tuple[Callable[[], Any], ...] = (self.text, lambda: 1.5, lambda: 100, lambda: [self.text(), None, {}])
        return {name: self.luck.choice(values)() for name in self.luck.sample("abcd", self.luck.randint(0, 3))}

    def schema(self) -> Body:
        parts = {"type": "object", "properties": {self.text(): {"default": 100.0, "maximum": 0}}, "required": ["a"]}
        return self.shuffled(parts)

    def function(self) -> Body:
        function = {"name": self.text(), "description": self.text(), "parameters": self.schema()}
        return self.shuffled(function | ({"strict": True} if self.chance(0.2) else {}))

    def tool(self) -> Body:
        return {"type": "function", "function": self.function()}

    def call(self) -> Body:
        function = {"name": self.text(), "arguments": json.dumps(self.arguments())}
        return {"id": self.text(), "type": "function", "function": function}

    def part(self) -> Any:
        return {"type": "text", "text": self.text()}

    def content(self) -> Any:
        return [self.part() for _ in range(self.luck.randint(1, 3))] if self.chance(0.25) else self.text()

    def turn(self) -> Body:
        role = self.luck.choice(self.roles)
        turn: Body = {"role": role, "content": self.content_of(role)}
        if turn["role"] == "assistant":
            if self.chance(0.35):
                turn[self.luck.choice(["reasoning", "reasoning_content"])] = self.text()
            if self.chance(0.4):
                turn["tool_calls"] = [self.call() for _ in range(self.luck.randint(1, 2))]
                if self.chance(0.3):
                    turn["content"] = None
        if turn["role"] == "tool":
            turn["tool_call_id"] = self.text()
        return turn

    def beside(self) -> Body:
        """Fields beside the turns."""
        return {"tools": [self.tool() for _ in range(self.luck.randint(1, 2))]} if self.chance(0.5) else {}

    def body(self) -> Body:
        turns = [self.turn() for _ in range(self.luck.randint(1, 7))]
        body = {self.turns: turns, "model": "m", "chat_template_kwargs": {"family": self.family}, **self.beside()}
        return body | (self.luck.choice(self.options) if self.chance(0.1) else {})

    def is_usual(self, body: Body) -> bool:
        """Whether clients send such a body."""
        return True

    def fresh(self, name: str) -> Any:
        """An element of a list."""
        makers: dict[str, Callable[[], Any]] = {self.turns: self.turn, "tools": self.tool, "tool_calls": self.call}
        return makers.get(name, self.part)()


class Texts(Talks):
    """Prompts of completions."""

    path = COMPLETIONS
    turns = "prompt"
    options = (*Talks.options[4:7], {"temperature": 0.5, "echo": True}, {"add_special_tokens": False}, {"n": 2})

    def body(self) -> Body:
        prompt: Any = "".join(self.text() for _ in range(self.luck.randint(1, 5)))
        if self.chance(0.4):
            prompt = self.luck.choices(range(5, 4000), k=self.luck.randint(1, 40))
        return {"model": "m", "prompt": prompt} | (self.luck.choice(self.options) if self.chance(0.1) else {})

    def changed(self, body: Body) -> Body:
        other = deepcopy(body)
        prompt = other["prompt"]
        cut = self.luck.randint(0, len(prompt))
        more = self.text() if isinstance(prompt, str) else [7]
        if self.chance(0.3):
            return other | self.luck.choice(self.options)
        other["prompt"] = self.luck.choice([prompt[:cut] + more, prompt[:cut] + more + prompt[cut:], prompt[:cut]])
        return other


class Blocks(Talks):
    """Anthropic's messages."""

    path = MESSAGES
    roles = ("user", "user", "assistant", "assistant", "system")
    options = (
        {"output_config": {"effort": "low"}},
        {"output_config": {"effort": "high"}},
        {"thinking": {"type": "disabled"}},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"tool_choice": {"type": "none"}},
        {"tool_choice": {"type": "any"}},
        {"metadata": {"user_id": "u"}, "temperature": 0.5, "stop_sequences": ["x"]},
        {"system": "#0;"},
    )
    extras = ({"cache_control": {"type": "ephemeral"}}, {"is_error": True}, {"name": "n"}, {"text": "#0;"})

    def tool(self) -> Body:
        tool = {"name": self.text(), "description": self.text(), "input_schema": self.schema()}
        return self.shuffled(tool | ({"defer_loading": True} if self.chance(0.1) else {}))

    def part(self) -> Any:
        result: Body = {"type": "tool_result", "tool_use_id": self.text(), "content": self.text()}
        if self.chance(0.3):
            result["content"] = [{"type": "text", "text": self.text()} for _ in range(2)]
        call = {"type": "tool_use", "id": self.text(), "name": self.text(), "input": self.arguments()}
        thinking = {"type": "thinking", "thinking": self.text(), "signature": "s"}
        text = {"type": "text", "text": self.text()}
        return self.luck.choice([text, text, text, thinking, call, result, result])

    def content(self) -> Any:
        return [self.part() for _ in range(self.luck.randint(1, 4))] if self.chance(0.6) else self.text()

    def turn(self) -> Body:
        role = self.luck.choice(self.roles)
        turn: Body = {"role": role, "content": self.content_of(role)}
        if role == "assistant" and isinstance(turn["content"], list):
            for block in turn["content"]:
                if block["type"] == "tool_result":
                    block["content"] = self.text()  # vLLM prints a list of parts as Python does, keys in their order
        if turn["role"] == "system":
            turn["content"] = self.text()
            if self.chance(0.3):
                turn["content"] = [{"type": "text", "text": self.text()} for _ in range(2)]
            elif self.chance(0.4):
                added = {"type": "tool_definition", "definition": self.tool()}
                turn["content"] = [{"type": "tool_addition", "tool": added}]
        return turn

    def is_usual(self, body: Body) -> bool:
        """Whether each message of a user has a text or only results of tools: vLLM drops others."""
        kinds = [
            {block["type"] for block in turn["content"] if "type" in block}
            for turn in body["messages"]
            if turn.get("role") == "user" and isinstance(turn.get("content"), list)
        ]
        return all("text" in kind or kind == {"tool_result"} for kind in kinds)

    def beside(self) -> Body:
        beside: Body = super().beside() | {"max_tokens": 2048}
        if self.chance(0.6):
            blocks = [{"type": "text", "text": self.text()} for _ in range(self.luck.randint(1, 3))]
            beside["system"] = self.luck.choice([self.text(), blocks])
        return beside


class Items(Talks):
    """Items of responses."""

    path = RESPONSES
    turns = "input"
    roles = ("system", "developer", "user", "user", "assistant", "assistant")
    options = (
        {"reasoning": {"effort": "low"}},
        {"tool_choice": "none"},
        {"instructions": "#0;"},
        {"truncation": "auto"},
        {"temperature": 0.5, "store": False, "prompt_cache_key": "k"},
    )
    extras = ({"status": "completed"}, {"status": "in_progress"}, {"namespace": "n"}, {"id": "msg_1"}, {"name": "n"})

    def tool(self) -> Body:
        return {"type": "function", **self.function()}

    def part(self) -> Any:
        return {"type": self.luck.choice(["input_text", "output_text"]), "text": self.text()}

    def turn(self) -> Body:
        kind = self.luck.randrange(10)
        arguments = json.dumps(self.arguments())
        call = {"type": "function_call", "call_id": self.text(), "name": self.text(), "arguments": arguments}
        custom = {"type": "custom_tool_call", "call_id": self.text(), "name": self.text(), "input": self.text()}
        output = {"type": "function_call_output", "call_id": self.text(), "output": self.text()}
        thought = {"type": "reasoning_text", "text": self.text()}
        summary = {"type": "summary_text", "text": self.text()}
        reasoning = {"type": "reasoning", "id": "rs_1", "summary": [summary] * self.chance(0.3), "content": [thought]}
        match kind:
            case 0 | 1:
                return custom if self.chance(0.25) else call
            case 2 | 3:
                return output | ({"type": "custom_tool_call_output"} if self.chance(0.25) else {})
            case 4:
                return reasoning
        role = self.luck.choice(self.roles)
        turn: Body = {"role": role, "content": self.content_of(role)}
        if isinstance(turn["content"], list):
            for part in turn["content"]:
                part["type"] = "output_text" if role == "assistant" else "input_text"
        return turn | ({"type": "message"} if self.chance(0.5) else {})

    def beside(self) -> Body:
        return super().beside() | ({"instructions": self.text()} if self.chance(0.5) else {})
