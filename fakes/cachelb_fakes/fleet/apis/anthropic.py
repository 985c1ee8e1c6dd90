"""The messages of the Anthropic API, which vLLM turns into a chat completion."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from cachelb_fakes.fleet.apis.dialect import (
    Dialect,
    InvalidError,
    RejectedError,
    choose_tool,
    encode_chat,
    event,
    is_result,
    make_call,
    read_field,
    read_list,
)
from cachelb_fakes.fleet.apis.openai import call_id

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt

    from cachelb_fakes.fleet.answer import Answer, Tool
    from cachelb_fakes.fleet.apis.dialect import Call

_ROLES: Final = {"user", "assistant", "system"}
_BLOCKS: Final = {"text", "image", "tool_use", "tool_result", "tool_reference", "thinking", "redacted_thinking"}
_FIELDS: Final = {
    **dict.fromkeys(("text", "thinking", "id", "name", "tool_use_id"), str),
    "input": dict,
    "source": dict,
}
_CHOICES: Final = {"auto", "any", "tool", "none"}
_ATTRIBUTION: Final = "x-anthropic-billing-header"
"""Begins a text of Claude Code that differs in every request; vLLM leaves it out of the prompt."""


class Messages(Dialect):
    """``/v1/messages``."""

    id_prefix = "chatcmpl-"

    def parse(self, body: dict[str, Any]) -> Call:
        """Read the call of a body."""
        tokens = encode_body(body)
        max_tokens = read_field(body, "max_tokens", int, required=True)
        if max_tokens < 1:
            raise InvalidError("max_tokens must be positive", param="body.max_tokens")
        call = make_call(body, tokens, max_tokens, self._engine.options)
        call.tool = _called(body)
        return call

    def whole(self, call: Call, answer: Answer, kv_params: dict[str, Any] | None) -> dict[str, Any]:
        """Return the answer in one piece."""
        block = _call_block(call, json.loads(answer.text)) if call.tool else {"type": "text", "text": answer.text}
        page = _message(call, [block]) | {"stop_reason": _reason(call), "usage": _usage(call)}
        return page if kv_params is None else page | {"kv_transfer_params": kv_params}

    def events(self, call: Call, answer: Answer, interval: int) -> Iterator[tuple[str, int]]:
        """Return the stream of an answer without its end."""
        # The cached tokens come at the end.
        usage = {"input_tokens": len(call.job.tokens), "output_tokens": 0}
        start = _message(call, []) | {"stop_reason": None, "stop_sequence": None, "usage": usage}
        yield event("message_start", message=start), 0
        block = {"type": "text", "text": ""} if call.tool is None else _call_block(call, {})
        yield event("content_block_start", index=0, content_block=block), 0
        kind, name = ("text_delta", "text") if call.tool is None else ("input_json_delta", "partial_json")
        for text, ids in answer.parts(interval):
            yield event("content_block_delta", index=0, delta={"type": kind, name: text}), len(ids)

    def closing(self, call: Call, answer: Answer) -> str:  # noqa: ARG002 - other APIs repeat the answer here
        """Return the end of the stream."""
        delta = {"stop_reason": _reason(call), "stop_sequence": None}
        stopped = event("content_block_stop", index=0)
        return stopped + event("message_delta", delta=delta, usage=_usage(call)) + event("message_stop")

    @staticmethod
    def error(error: RejectedError) -> dict[str, Any]:
        """Return the answer to what is refused: in the form of the OpenAI API if it does not fit the schema."""
        if isinstance(error, InvalidError):
            return error.page()
        return {"type": "error", "error": {"type": error.kind, "message": str(error)}}


def encode_body(body: dict[str, Any]) -> npt.NDArray[np.uint32]:
    """Tokenize the conversation in a body."""
    if not read_field(body, "model", str, required=True):
        raise InvalidError("Model is required", param="body.model")
    messages: list[dict[str, Any]] = []
    system = _system_text(_blocks(body, "system"))
    if system:
        messages.append({"role": "system", "content": system})
    for message in read_list(body, "messages", required=True) or ():
        messages += _chat_messages(message)
    if not messages:
        raise RejectedError("messages has no message")  # what templates say of it
    return encode_chat(messages, [_chat_tool(tool) for tool in read_list(body, "tools") or ()])


def _chat_messages(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Turn a message into those of a chat completion: results of tools come before its own content."""
    role = read_field(message, "role", str, required=True, of="a message")
    if role not in _ROLES:
        raise InvalidError(f"role of a message is {role!r:.20}, it must be 'user', 'assistant' or 'system'")
    if message.get("content") is None:
        raise InvalidError("content of a message is required")
    blocks = _blocks(message, "content", of="a message")
    if role == "system":
        text = _system_text(blocks)
        return [{"role": role, "content": text}] if text else []
    if isinstance(blocks, str):
        return [{"role": role, "content": blocks}]
    own: dict[str, Any] = {"role": role}
    results: list[dict[str, Any]] = []
    for block in blocks or ():
        if block["type"] == "tool_result":
            results += _chat_results(block)
        else:
            _add_block(own, block)
    return [*results, own] if role != "user" or "content" in own else results


def _add_block(message: dict[str, Any], block: dict[str, Any]) -> None:
    """Add a block to the message of a chat completion that it belongs to."""
    kind = block["type"]
    if kind == "text" and block.get("text"):
        message.setdefault("content", []).append({"type": "text", "text": block["text"]})
    elif kind == "image" and block.get("source"):
        message.setdefault("content", []).append(_chat_image(block["source"]))
    elif kind == "thinking":
        message["reasoning"] = message.get("reasoning", "") + (block.get("thinking") or "")
    elif kind == "tool_use":
        function = {"name": block.get("name") or "", "arguments": block.get("input") or {}}
        message.setdefault("tool_calls", []).append({"id": block.get("id"), "type": "function", "function": function})


def _chat_results(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    content = block.get("content") or ""
    parts: list[dict[str, Any]] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    text = "\n".join(read_field(part, "text", str) or "" for part in parts if part.get("type") == "text")
    yield {"role": "tool", "tool_call_id": block.get("tool_use_id") or "", "content": text}
    images = [_chat_image(read_field(part, "source", dict) or {}) for part in parts if part.get("type") == "image"]
    if images:
        yield {"role": "user", "content": images}


def _chat_image(source: dict[str, Any]) -> dict[str, Any]:
    url = f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"
    return {"type": "image_url", "image_url": {"url": source.get("url", "") if source.get("type") == "url" else url}}


def _chat_tool(tool: dict[str, Any]) -> dict[str, Any]:
    schema = read_field(tool, "input_schema", dict, required=True, of="a tool")
    parameters = schema if "type" in schema else {**schema, "type": "object"}
    return {"type": "function", "function": {**tool, "parameters": parameters}}


def _blocks(values: dict[str, Any], name: str, of: str = "") -> str | list[dict[str, Any]] | None:
    """Return a text or a list of checked blocks."""
    blocks: str | list[Any] | None = read_field(values, name, str, list, of=of)
    for block in blocks if isinstance(blocks, list) else ():
        if not isinstance(block, dict) or read_field(block, "type", str, of="a block") not in _BLOCKS:
            raise InvalidError(f"every block must be an object whose type is one of {sorted(_BLOCKS)}")
        for field, kind in _FIELDS.items():
            read_field(block, field, kind, of="a block")
        inner = read_field(block, "content", str, list, of="a block")
        if isinstance(inner, list) and not all(isinstance(part, dict) for part in inner):
            raise InvalidError("content of a block must be a string or a list of objects")
    return blocks


def _system_text(blocks: str | list[dict[str, Any]] | None) -> str:
    if isinstance(blocks, str):
        return blocks
    texts = [block.get("text") or "" for block in blocks or () if block["type"] == "text"]
    return "".join(text for text in texts if not text.startswith(_ATTRIBUTION))


def _called(body: dict[str, Any]) -> Tool | None:
    """Return the tool that the answer calls."""
    choice = read_field(body, "tool_choice", dict) or {"type": "auto"}
    kind, name = (read_field(choice, field, str, of="tool_choice") for field in ("type", "name"))
    if kind not in _CHOICES or (kind == "tool" and not name):
        raise InvalidError("tool_choice must be 'auto', 'any', 'none', or 'tool' with a name", param="body.tool_choice")
    schemas = {tool["name"]: tool["input_schema"] for tool in body.get("tools") or ()}
    if kind == "tool":
        return choose_tool(schemas, name, RejectedError)
    if kind == "none" or (kind == "auto" and is_result(_chat_messages(body["messages"][-1]))):
        return None
    return choose_tool(schemas)


def _message(call: Call, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": call.request_id, "type": "message", "role": "assistant", "model": call.model, "content": content}


def _call_block(call: Call, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id(call), "name": call.tool and call.tool.name, "input": arguments}


def _reason(call: Call) -> str:
    return "max_tokens" if call.tool is None else "tool_use"


def _usage(call: Call) -> dict[str, int]:
    """Return the usage of a finished request: the cached tokens of the prompt are not among its input tokens."""
    job, cached = call.job, {"cache_read_input_tokens": call.job.cached_tokens} if call.reports_cached else {}
    return {"input_tokens": len(job.tokens) - sum(cached.values()), "output_tokens": job.max_tokens, **cached}
