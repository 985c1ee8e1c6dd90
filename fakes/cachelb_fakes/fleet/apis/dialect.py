"""The interface between the server and an engine's API."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from cachelb_fakes.fleet.answer import Tool
from cachelb_fakes.fleet.call import InvalidError, RejectedError, read_field
from cachelb_fakes.fleet.tokens import encode, render_chat

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    import numpy.typing as npt

    from cachelb_fakes.fleet.answer import Answer
    from cachelb_fakes.fleet.call import Call
    from cachelb_fakes.fleet.engine import Engine


class Dialect(ABC):
    """One request in the form of one API, with what its answer repeats of it."""

    id_prefix: ClassVar[str]
    names_ids: ClassVar[bool] = True
    """Whether ids are made of the client's ``X-Request-Id``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._created = int(time.time())

    @abstractmethod
    def parse(self, body: dict[str, Any]) -> Call:
        """Read the call of a body."""

    @abstractmethod
    def whole(self, call: Call, answer: Answer, kv_params: dict[str, Any] | None) -> dict[str, Any]:
        """Return the answer in one piece."""

    @abstractmethod
    def events(self, call: Call, answer: Answer, interval: int) -> Iterator[tuple[str, int]]:
        """Return the stream of an answer without its end, each event with the tokens that it stands for.

        An event has `interval` tokens; the first token is sent alone.
        """

    @abstractmethod
    def closing(self, call: Call, answer: Answer) -> str:
        """Return the end of the stream."""

    def _head(self, call: Call, kind: str) -> dict[str, Any]:
        """Return what answers of the OpenAI API begin with."""
        return {"id": call.request_id, "object": kind, "created": self._created, "model": call.model}

    @staticmethod
    def error(error: RejectedError) -> dict[str, Any]:
        """Return the answer to what is refused."""
        return error.page()


def event(kind: str, **fields: object) -> str:
    """Write an event of a stream whose events have names."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"


def encode_chat(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, *, opening: bool = True
) -> npt.NDArray[np.uint32]:
    """Tokenize a conversation in the form of chat completions, with the opening of an answer."""
    try:
        return encode(render_chat(messages, tools, add_generation_prompt=opening))
    except ValueError as error:
        raise InvalidError(str(error)) from None


def read_list(body: dict[str, Any], name: str, *, required: bool = False) -> list[dict[str, Any]] | None:
    """Return a field that is a list of objects."""
    items: list[dict[str, Any]] | None = read_field(body, name, list, required=required)
    if items is not None and not all(isinstance(item, dict) for item in items):
        raise InvalidError(f"every one of {name} must be an object", param=f"body.{name}")
    return items


def choose_tool(
    schemas: dict[str, Any], name: object = None, refusal: type[RejectedError] = InvalidError
) -> Tool | None:
    """Return the tool that an answer calls: the one that the request names, else the first."""
    if name is None:
        first = next(iter(schemas), None)
        return None if first is None else Tool(first, schemas[first], named=False)
    if not isinstance(name, str) or name not in schemas:
        raise refusal("The tool specified in `tool_choice` does not match any of the specified `tools`")
    return Tool(name, schemas[name], named=True)


def is_result(messages: Sequence[dict[str, Any]]) -> bool:
    """Return whether the client sent the result of a tool since the last answer, in the form of chat completions."""
    roles = (message["role"] for message in reversed(messages))
    return next((role for role in roles if role in {"assistant", "tool"}), None) == "tool"
