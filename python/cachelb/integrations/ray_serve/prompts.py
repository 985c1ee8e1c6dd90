"""Reads the prompt of a call to a Serve deployment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cachelb.openai import routing_arguments

_FIELDS = (
    "tools",
    "cache_salt",
    "max_completion_tokens",
    "max_tokens",
    "session_params",
    "session_id",
    "user",
    "user_id",
)
_IDS = "request_token_ids"  # where Ray puts the token ids for its own routers that know tokens


def read_request(call: Any) -> dict[str, Any]:  # noqa: ANN401 - Serve's PendingRequest, or one like it
    """Read the keyword arguments of `Router.select_worker` from a call; without a prompt among them, load decides.

    The prompt is in the first positional argument that has `messages` or `prompt`, as an attribute (the request objects
    of Ray Serve LLM) or as a key (a JSON body). Token ids of the call take its place. The multiplexed model is the
    adapter: prompts of different ones never match.

    Example:
        >>> from types import SimpleNamespace
        >>> metadata = SimpleNamespace(session_id="chat-1", multiplexed_model_id="")
        >>> body = {"prompt": "Once upon a time", "max_tokens": 64}
        >>> read_request(SimpleNamespace(args=[body], kwargs={}, metadata=metadata))
        {'text': 'Once upon a time', 'max_output_tokens': 64, 'session': 'chat-1'}
    """
    found: dict[str, Any] = {}
    for argument in call.args:
        if (body := _body(argument)) is not None:
            found = _arguments(body)
            break
    tokens = call.kwargs.get(_IDS)
    if tokens is not None and len(tokens):
        found.pop("text", None)
        found["tokens"] = tokens
    if session := getattr(call.metadata, "session_id", ""):
        found["session"] = session
    if adapter := call.metadata.multiplexed_model_id:
        found["lora"] = adapter
    return found


def _body(argument: object) -> dict[str, Any] | None:
    """Collect the fields of an argument that holds a prompt."""
    if isinstance(argument, str | bytes | int | float | list | tuple | None):
        return None
    if isinstance(argument, Mapping):
        fields = argument
        messages, prompt = fields.get("messages"), fields.get("prompt")
    else:
        messages, prompt = getattr(argument, "messages", None), getattr(argument, "prompt", None)
        # Where request objects keep their fields. Asking for one that is not there costs microseconds.
        fields = getattr(argument, "__dict__", {})
    if messages is None and prompt is None:
        return None
    body = {name: value for name in _FIELDS if (value := fields.get(name)) is not None}
    if messages is not None:
        body["messages"] = _messages(messages)
    else:
        body["prompt"] = prompt
    return body


def _messages(messages: Any) -> Any:  # noqa: ANN401 - what the client sent
    """Turn message objects into mappings."""
    if not isinstance(messages, list | tuple):
        return messages
    return [each.model_dump(exclude_none=True) if hasattr(each, "model_dump") else each for each in messages]


def _arguments(body: dict[str, Any]) -> dict[str, Any]:
    try:
        return dict(routing_arguments(body))
    except (TypeError, ValueError):
        # Outside the API, but perhaps accepted by the deployment: its text, in order.
        text = _text(body.get("messages", body.get("prompt")))
        return {"text": text} if text else {}


def _text(value: object, depth: int = 0) -> str:
    if isinstance(value, str):
        return value
    if depth > 8:  # noqa: PLR2004 - deeper than any message, and no loop
        return ""
    if isinstance(value, list | tuple):
        return "".join(_text(item, depth + 1) for item in value)
    if isinstance(value, Mapping):
        text = value.get("text")
        return text if isinstance(text, str) else _text(value.get("content"), depth + 1)
    return ""
