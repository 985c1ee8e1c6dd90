"""Answers that are made up: words, or the call of a tool."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

# Four ASCII letters each, so that every word is one token and needs no escape in JSON.
_WORDS: Final = (
    " sun", " sea", " sky", " oak", " elm", " fox", " owl", " bee",
    " tin", " ore", " ash", " hay", " fig", " rye", " dew", " fog",
)  # fmt: skip
_WORD_TOKENS: Final = tuple(int.from_bytes(word.encode(), "little") for word in _WORDS)
_EXAMPLES: Final = {"string": "", "integer": 0, "number": 0, "boolean": False, "array": [], "object": {}}
_GAP: Final = "\0"


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that the answer calls."""

    name: str
    schema: Any  # of its arguments, None without one
    named: bool  # the request names it, instead of asking for any


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, the same for the same prompt."""

    pieces: list[str]  # its text, or the arguments of its call, one a token
    ids: list[int]

    @property
    def text(self) -> str:
        """The whole text, or the whole arguments."""
        return "".join(self.pieces)

    def parts(self, interval: int) -> Iterator[tuple[str, list[int]]]:
        """Split the answer for a stream: the first token alone, then `interval` tokens at a time."""
        start, end = 0, 1
        while start < len(self.pieces):
            yield "".join(self.pieces[start:end]), self.ids[start:end]
            start, end = end, min(end + interval, len(self.pieces))


def make_answer(prompt: npt.NDArray[np.uint32], count: int, tool: Tool | None) -> Answer:
    """Make up an answer of `count` tokens; the words of a call are in the tool's first argument that is a text."""
    state = zlib.crc32(prompt.data)
    words, ids = [], []
    for _ in range(count):
        state = (state * 1_103_515_245 + 12_345) & 0x7FFF_FFFF
        words.append(_WORDS[state >> 27])
        ids.append(_WORD_TOKENS[state >> 27])
    if tool is not None:
        before, gap, after = _arguments(tool.schema)
        words = words if gap else [""] * count
        words[0] = before + words[0]
        words[-1] += after
    return Answer(words, ids)


def _arguments(schema: Any) -> tuple[str, str, str]:  # noqa: ANN401 - JSON
    """Return the JSON of arguments that fit a simple schema, parted at the gap for the words; no gap without a text."""
    properties = (schema or {}).get("properties")
    arguments = {name: _example(each) for name, each in properties.items()} if isinstance(properties, dict) else {}
    for name, value in arguments.items():
        if value == "":
            arguments[name] = _GAP
            break
    return json.dumps(arguments).partition(json.dumps(_GAP)[1:-1])


def _example(schema: object) -> object:
    if not isinstance(schema, dict):
        return None
    choices = schema.get("enum")
    kind = schema.get("type")
    return choices[0] if isinstance(choices, list) and choices else _EXAMPLES.get(kind if isinstance(kind, str) else "")
