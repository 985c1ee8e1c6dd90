"""Other spellings of a request body, which mean the same to vLLM."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

from tests.engine.talks import CHAT, HEADER, MESSAGES, RESPONSES, Body, Talks

# The order of their keys is rendered.
KEPT = frozenset({"parameters", "input_schema", "properties", "documents", "definition"})
KNOWN = frozenset({"type", "function", "name", "description", "parameters", "input_schema", "strict"})


class Spellings:
    """Spells the bodies of one endpoint."""

    def __init__(self, talks: Talks) -> None:
        self.talks = talks
        self.luck = talks.luck
        self.path = talks.path

    def of(self, body: Body) -> bytes:
        """Spell a body in some way."""
        other = deepcopy(body)
        for turn in other[self.talks.turns] if isinstance(other[self.talks.turns], list) else []:
            if isinstance(turn, dict):
                self._respell_turn(turn)
        if self.path == MESSAGES and self._coin():
            header = {"type": "text", "text": f"{HEADER}{self.luck.random()};"}
            system = other.get("system", [])
            blocks = [{"type": "text", "text": system}] if isinstance(system, str) else system
            # vLLM takes no system message that is empty for one.
            if blocks:
                blocks.insert(self.luck.randint(0, len(blocks)), header)
                other["system"] = blocks
        if self._coin():
            other |= {"temperature": 0.5, "user": "u"} if self.path != MESSAGES else {"temperature": 0.5, "top_k": 3}
        return self._written(other, free=True).encode()

    def _coin(self) -> bool:
        return self.talks.chance(0.5)

    def _respell_turn(self, turn: Body) -> None:
        content = turn.get("content")
        if self.path == CHAT:
            if "reasoning" in turn and self._coin():
                turn["reasoning_content"] = turn.pop("reasoning")
            if turn["role"] == "assistant" and self._coin():
                turn.setdefault("tool_calls", [])
                turn["refusal"] = None
            for call in turn.get("tool_calls", []):
                call["function"]["arguments"] = self._arguments(call["function"]["arguments"])
        elif "arguments" in turn:
            turn["arguments"] = self._arguments(turn["arguments"])
        takes_parts = self.path != RESPONSES or turn.get("role") != "assistant" or "type" in turn
        if isinstance(content, str) and content and "role" in turn and takes_parts and self._coin():
            kinds = {CHAT: "text", MESSAGES: "text"}
            responses = "output_text" if turn["role"] == "assistant" else "input_text"
            turn["content"] = [{"type": kinds.get(self.path, responses), "text": content}]
        elif self.path == MESSAGES and isinstance(content, list) and turn["role"] != "system":
            turn["content"] = self._mixed(turn["role"], content)

    def _mixed(self, role: str, blocks: list[Body]) -> list[Body]:
        """Blocks in another order, in which those of a kind keep theirs."""
        kinds = [block["type"] for block in blocks]
        if role == "assistant" and "tool_result" in kinds:
            return blocks  # it is a text among the others
        order = self.luck.sample(kinds, len(kinds))
        rest = {kind: [block for block, own in zip(blocks, kinds, strict=True) if own == kind] for kind in kinds}
        return [rest[kind].pop(0) for kind in order]

    def _arguments(self, text: str) -> str:
        value = json.loads(text)
        if not value and self._coin():
            return ""
        return json.dumps(value, indent=self.luck.choice([None, 2]), ensure_ascii=self._coin())

    def _written(self, value: Any, *, free: bool) -> str:
        space = self.luck.choice(["", "", " ", "\n\t"])
        if isinstance(value, dict):
            entries = list(value.items())
            tool = "function" in value or {"input_schema", "parameters"} & value.keys()
            if free and (not tool or value.keys() <= KNOWN):
                self.luck.shuffle(entries)
            parts = []
            for key, inner in entries:
                if free and not tool and self.talks.chance(0.05):
                    parts.append(f"{json.dumps(key)}:[1]")  # the last of equal keys counts
                inside = free and key not in KEPT and not (key == "input" and self.path == MESSAGES)
                parts.append(f"{json.dumps(key)}{space}:{space}{self._written(inner, free=inside)}")
            return "{" + space + f"{space},".join(parts) + "}"
        if isinstance(value, list):
            return f"[{space}" + f",{space}".join(self._written(inner, free=free) for inner in value) + f"{space}]"
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, float):
            return self.luck.choice([str(value), f"{value}0", f"{value:e}"])
        if value == 0 and value is not False:
            return self.luck.choice(["0", "-0"])
        return json.dumps(value)

    def _text(self, text: str) -> str:
        written = json.dumps(text, ensure_ascii=self._coin())
        return written.replace("/", "\\/") if self._coin() else written


class Conversation:
    """One conversation through three endpoints."""

    def __init__(self, talks: Talks) -> None:
        self.talks = talks
        self.beside = {"model": "m", "chat_template_kwargs": {"family": talks.family}}
        self.functions = [talks.function() for _ in range(talks.luck.randint(0, 2))]
        self.chat: list[Body] = []
        self.messages: list[Body] = []
        self.items: list[Body] = []
        self.system = talks.text() if talks.chance(0.5) else None
        for _ in range(talks.luck.randint(1, 4)):
            self._ask()
            self._answer()

    def bodies(self) -> dict[str, Body]:
        """Return the body of each endpoint by its path."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        chat = {"messages": [*system, *self.chat], **self.beside}
        messages = {"messages": self.messages, "max_tokens": 9, **self.beside}
        items = {"input": self.items, **self.beside}
        if self.system:
            messages["system"], items["instructions"] = self.system, self.system
        if self.functions:
            chat["tools"] = [{"type": "function", "function": function} for function in self.functions]
            items["tools"] = [{"type": "function", **function} for function in self.functions]
            names = {"parameters": "input_schema"}
            messages["tools"] = [
                {names.get(key, key): value for key, value in function.items()} for function in self.functions
            ]
        return {CHAT: chat, MESSAGES: messages, RESPONSES: items}

    def _ask(self) -> None:
        text = self.talks.text()
        for turns in (self.chat, self.messages, self.items):
            turns.append({"role": "user", "content": text})

    def _answer(self) -> None:
        reasoning, text = self.talks.text(), self.talks.text()
        calls = [(f"c{n}", self.talks.text(), self.talks.arguments()) for n in range(self.talks.luck.randint(0, 2))]
        results = [self.talks.text() for _ in calls]
        message: Body = {"role": "assistant", "content": text, "reasoning": reasoning}
        thinking = {"type": "thinking", "thinking": reasoning, "signature": ""}
        blocks: list[Body] = [thinking, {"type": "text", "text": text}]
        thought = {"type": "reasoning_text", "text": reasoning}
        self.items.append({"type": "reasoning", "id": "rs", "summary": [], "content": [thought]})
        self.items.append({"type": "message", "role": "assistant", "content": text})
        for name, function, arguments in calls:
            blocks.append({"type": "tool_use", "id": name, "name": function, "input": arguments})
            written = json.dumps(arguments)
            call = {"id": name, "type": "function", "function": {"name": function, "arguments": written}}
            message.setdefault("tool_calls", []).append(call)
            self.items.append({"type": "function_call", "call_id": name, "name": function, "arguments": written})
        self.chat.append(message)
        self.messages.append({"role": "assistant", "content": blocks})
        for (name, _, _), result in zip(calls, results, strict=True):
            self.chat.append({"role": "tool", "tool_call_id": name, "content": result})
            self.items.append({"type": "function_call_output", "call_id": name, "output": result})
        if calls:
            pairs = zip(calls, results, strict=True)
            done = [{"type": "tool_result", "tool_use_id": call[0], "content": result} for call, result in pairs]
            self.messages.append({"role": "user", "content": done})
