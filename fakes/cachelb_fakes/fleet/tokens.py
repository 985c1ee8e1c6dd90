"""A tokenizer that needs no vocabulary: one token per four bytes of UTF-8.

Texts that share their first ``4 * n`` bytes share their first ``n`` tokens, as prompts of a real tokenizer do.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

BYTES_PER_TOKEN: Final = 4
_FUNCTION_FIELDS: Final = ("name", "description", "parameters", "strict")


def encode(text: str) -> npt.NDArray[np.uint32]:
    """Tokenize a text: one little-endian u32 per four bytes of UTF-8, the last one filled up with zero bytes.

    Example:
        >>> encode("abcdef").tolist() == [0x64636261, 0x6665]
        True
    """
    data = text.encode(errors="surrogatepass")
    return np.frombuffer(data + bytes(-len(data) % BYTES_PER_TOKEN), "<u4")


def decode(tokens: Iterable[int] | npt.NDArray[np.uint32]) -> str:
    """Return the text that `encode` was given, less zero characters at its end; invalid UTF-8 is replaced.

    Example:
        >>> decode(encode("abcdef"))
        'abcdef'
    """
    ids = tokens if isinstance(tokens, np.ndarray) else np.fromiter(tokens, "<u4")
    return ids.astype("<u4").tobytes().rstrip(b"\0").decode(errors="replace")


def render_chat(messages: Sequence[object], tools: object = None, *, add_generation_prompt: bool = True) -> str:
    """Render a conversation as a chat template does, so that a longer one begins with the shorter one.

    Messages and tools are in the form of the OpenAI API, into which vLLM turns those of the other APIs; tools are
    rendered first. `add_generation_prompt` ends with the opening of the assistant's turn.

    Example:
        >>> render_chat([{"role": "user", "content": "hi"}])
        '<|user|>hi<|end|><|assistant|>'
    """
    parts = [json.dumps([_function(tool) for tool in tools])] if isinstance(tools, list) and tools else []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ValueError("every message must be an object with a role")  # noqa: TRY004 - becomes a 400
        parts += (f"<|{message['role']}|>", *_contents(message), "<|end|>")
    return "".join((*parts, "<|assistant|>" if add_generation_prompt else ""))


def _contents(message: dict[str, Any]) -> Iterator[str]:
    result_of = message.get("tool_call_id")
    if result_of:
        yield f"<|{result_of}|>"
    reasoning = message.get("reasoning") or message.get("reasoning_content")
    if reasoning:
        yield f"<|think|>{reasoning}<|end|>"
    content = message.get("content")
    if isinstance(content, list):
        yield "\n".join(_text(part) for part in content)
    elif isinstance(content, str):
        yield content
    elif content is not None:
        raise ValueError("the content of a message must be a string or a list of parts")
    calls = message.get("tool_calls")
    if calls:
        if not isinstance(calls, list) or not all(map(_is_call, calls)):
            raise ValueError("tool_calls must be a list of objects with a function that has a name")
        yield json.dumps([[call.get("id"), call["function"]["name"], _arguments(call["function"])] for call in calls])


def _function(tool: object) -> dict[str, Any]:
    """Return a tool's fields in the order of vLLM's class; what lies deeper keeps its order."""
    if not isinstance(tool, dict) or not _is_call(tool):
        raise ValueError("every tool must be an object with a function that has a name")
    values = tool["function"]
    if not isinstance(values.get("parameters"), dict | None):
        raise ValueError("the parameters of a tool must be an object")  # noqa: TRY004 - becomes a 400
    return {name: values[name] for name in _FUNCTION_FIELDS if values.get(name) is not None}


def _is_call(call: object) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _arguments(function: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call. vLLM takes what is no JSON object for an empty one."""
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return {}
    return arguments if isinstance(arguments, dict) else {}


def _text(part: object) -> str:
    """Return the text of a part. An image or a sound has a placeholder, as engines see them too."""
    if isinstance(part, str):
        return part
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        text: str = part["text"]
        return text
    return f"<|{hashlib.sha256(json.dumps(part, sort_keys=True).encode()).hexdigest()[:16]}|>"
