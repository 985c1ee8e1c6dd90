"""Texts of words that occur once, and the parts of requests that agents make of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

Body = dict[str, Any]


@dataclass(slots=True)
class Words:
    """Texts, each word of which occurs once in all transcripts of a run."""

    prefix: str
    numbers: count[int] = field(default_factory=lambda: count(1))

    def text(self, words: int) -> str:
        """Make a text of so many words."""
        return " ".join(f"{self.prefix}{next(self.numbers)}" for _ in range(words))

    def name(self) -> str:
        """Make an identifier."""
        return f"{self.prefix}_{next(self.numbers)}"

    def call_id(self) -> str:
        """Make the id of a call: engines make them, and some templates take nine letters only."""
        return f"{next(self.numbers):09d}"

    def functions(self, amount: int) -> list[Body]:
        """Make functions with a name, a description and parameters."""
        return [
            {
                "name": self.name(),
                "description": self.text(60),
                "parameters": {
                    "type": "object",
                    "properties": {
                        name: {"type": "string", "description": self.text(15)} for name in ("path", "content")
                    },
                    "required": ["path"],
                },
            }
            for _ in range(amount)
        ]

    def arguments(self) -> Body:
        """Make the arguments of a call."""
        return {"path": self.name(), "content": self.text(25)}


def parts(*texts: str) -> list[Body]:
    """Make a content of several texts."""
    return [{"type": "text", "text": text} for text in texts]


def message(role: str, content: object, **fields: object) -> Body:
    """Make a message of a chat."""
    return {"role": role, "content": content, **fields}


def call(name: str, arguments: Mapping[str, Any], number: int) -> Body:
    """Make a tool call of a chat."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": f"{number:09d}", "type": "function", "function": function}


def tools_of(functions: list[Body]) -> list[Body]:
    """Make the tools of a chat."""
    return [{"type": "function", "function": function} for function in functions]
