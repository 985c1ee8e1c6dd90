"""Requests of hosts that hand over parsed fields, serialised once to be read as any other body."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cachelb.requests import encode_body

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cachelb.types import RequestArguments

_FIELDS = (
    "cache_salt",
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "max_completion_tokens",
    "max_tokens",
    "n",
    "priority",
    "prompt_cache_key",
    "reasoning_effort",
    "session_id",
    "session_params",
    "tool_choice",
    "tools",
    "vllm_xargs",
)
"""Fields that `Router.select_worker` reads beside the prompt. Hosts have more, some of which are not JSON."""


def as_body(fields: Mapping[str, Any], **prompt: object) -> RequestArguments:
    """Return `body=` and `path=` of a request with `fields`, whose prompt is `messages=` or `prompt=`, or missing.

    The prompt comes last, so that the bodies of a conversation's turns begin alike. Raises TypeError or ValueError for
    values that JSON does not know.

    Example:
        >>> as_body({"max_tokens": 8, "logger": print}, prompt="Hello!")
        {'body': b'{"max_tokens":8,"prompt":"Hello!"}', 'path': '/v1/completions'}
    """
    found = {name: value for name in _FIELDS if (value := fields.get(name)) is not None}
    path = "/v1/chat/completions" if "messages" in prompt else "/v1/completions"
    return {"body": encode_body({**found, **prompt}), "path": path}
