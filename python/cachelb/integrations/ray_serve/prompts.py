"""Reads the prompt of a call to a Serve deployment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cachelb.integrations.parsed import as_body

_IDS = "request_token_ids"  # where Ray puts the token ids for its own routers that know tokens


def read_request(call: Any) -> dict[str, Any]:  # noqa: ANN401 - Serve's PendingRequest, or one like it
    """Read the keyword arguments of `Router.select_worker` from a call; without a prompt among them, load decides.

    The prompt is in the first positional argument that has `messages` or `prompt`, as an attribute (the request objects
    of Ray Serve LLM) or as a key (a JSON body). Token ids of the call take its place. The multiplexed model is the
    adapter: prompts of different ones never match.

    Example:
        >>> from types import SimpleNamespace
        >>> metadata = SimpleNamespace(session_id="chat-1", multiplexed_model_id="")
        >>> body = {"prompt": "Once", "max_tokens": 64}
        >>> read_request(SimpleNamespace(args=[body], kwargs={}, metadata=metadata))
        {'body': b'{"max_tokens":64,"prompt":"Once"}', 'path': '/v1/completions', 'session': 'chat-1'}
    """
    tokens = call.kwargs.get(_IDS)
    has_tokens = tokens is not None and len(tokens) > 0
    found: dict[str, Any] = {}
    for argument in call.args:
        if (request := _request(argument)) is not None:
            fields, prompt = request
            found.update(as_body(fields, **({} if has_tokens else prompt)))
            break
    if has_tokens:
        found["tokens"] = tokens
    if session := getattr(call.metadata, "session_id", ""):
        found["session"] = session
    if adapter := call.metadata.multiplexed_model_id:
        found["lora"] = adapter
    return found


def _request(argument: object) -> tuple[Mapping[str, Any], dict[str, Any]] | None:
    """Return the fields of an argument that holds a prompt, and the prompt by its name."""
    if isinstance(argument, str | bytes | int | float | list | tuple | None):
        return None
    # Where request objects keep their fields. Asking for one that is not there costs microseconds.
    fields = argument if isinstance(argument, Mapping) else getattr(argument, "__dict__", {})
    for name in ("messages", "prompt"):
        if (value := fields.get(name)) is not None:
            return fields, {name: value}
    return None
