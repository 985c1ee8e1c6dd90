"""The responses of the OpenAI API, which vLLM turns into a chat completion and keeps in the engine's process."""

from __future__ import annotations

from dataclasses import dataclass
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

    from cachelb_fakes.fleet.answer import Answer, Tool
    from cachelb_fakes.fleet.apis.dialect import Call
    from cachelb_fakes.fleet.engine import Engine

_ROLES: Final = {"user", "assistant", "system", "developer"}


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response that another one may continue."""

    messages: list[dict[str, Any]]  # its input
    texts: list[str]  # its output; vLLM leaves calls and reasoning out


class Responses(Dialect):
    """``/v1/responses``, with the store that ``VLLM_ENABLE_RESPONSES_API_STORE=1`` gives an engine."""

    id_prefix = "resp_"
    names_ids = False

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._body: dict[str, Any] = {}
        self._messages: list[dict[str, Any]] = []
        self._events = 0

    def parse(self, body: dict[str, Any]) -> Call:
        """Read the call of a body."""
        if body.get("prompt") is not None:
            raise InvalidError("prompt template is not supported", param="prompt")
        read_field(body, "store", bool)
        if read_field(body, "background", bool):
            raise RejectedError("background responses are not supported", param="background")
        added = _new_messages(body)
        self._body = body
        self._messages = messages = self._continued(body) + added
        if not messages:
            raise RejectedError("input has no message")  # what templates say of it
        max_tokens = read_field(body, "max_output_tokens", int)
        if max_tokens is not None and max_tokens < 1:
            raise RejectedError("max_output_tokens must be at least 1")
        options = self._engine.options
        functions = [tool for tool in read_list(body, "tools") or () if tool.get("type") == "function"]
        tokens = encode_chat(messages, [{"function": function} for function in functions])
        call = make_call(body, tokens, max_tokens or options.default_max_tokens, options)
        call.tool = _called(body, functions, messages)
        call.request_id = read_field(body, "request_id", str) or ""
        return call

    def whole(self, call: Call, answer: Answer, kv_params: dict[str, Any] | None) -> dict[str, Any]:
        """Return the answer in one piece, and keep it unless ``store`` is false: others may continue it."""
        if self._body.get("store") is not False:
            texts = [answer.text] if call.tool is None else []
            self._engine.responses[call.request_id] = StoredResponse(self._messages, texts)
        page = self._page(call, "incomplete" if call.tool is None else "completed", [_item(call, answer.text)])
        return page | {"usage": _usage(call), "kv_transfer_params": kv_params}

    def events(self, call: Call, answer: Answer, interval: int) -> Iterator[tuple[str, int]]:
        """Return the stream of an answer without its end."""
        page = self._page(call, "in_progress", [])
        yield self._event("response.created", response=page), 0
        yield self._event("response.in_progress", response=page), 0
        is_text = call.tool is None
        opening = _item(call, "") | {"status": "in_progress"} | ({"content": []} if is_text else {})
        yield self._event("response.output_item.added", output_index=0, item=opening), 0
        place = _place(call, opening)
        if is_text:
            yield self._event("response.content_part.added", **place, part=_text("")), 0
        kind = "response.output_text.delta" if is_text else "response.function_call_arguments.delta"
        more: dict[str, Any] = {"logprobs": []} if is_text else {}
        for text, ids in answer.parts(interval):
            yield self._event(kind, **place, delta=text, **more), len(ids)

    def closing(self, call: Call, answer: Answer) -> str:
        """Return the end of the stream."""
        item = _item(call, answer.text)
        place = _place(call, item)
        if call.tool is None:
            ended = self._event("response.output_text.done", **place, text=answer.text, logprobs=[])
            ended += self._event("response.content_part.done", **place, part=_text(answer.text))
        else:
            made = {"name": call.tool.name, "arguments": answer.text}
            ended = self._event("response.function_call_arguments.done", **place, **made)
        ended += self._event("response.output_item.done", output_index=0, item=item)
        return ended + self._event("response.completed", response=self.whole(call, answer, None))

    def _continued(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """Return what stands before the new input: instructions of the response that is continued do not."""
        instructions = read_field(body, "instructions", str)
        messages = [{"role": "system", "content": instructions}] if instructions else []
        previous = read_field(body, "previous_response_id", str)
        if previous is None:
            return messages
        stored = self._engine.responses.get(previous)
        if stored is None:
            why = f"Response with id '{previous}' not found."
            raise RejectedError(why, 404, kind="invalid_request_error", param="response_id")
        messages += (message for message in stored.messages if message["role"] != "system")
        return messages + [{"role": "assistant", "content": text} for text in stored.texts]

    def _page(self, call: Call, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        body = self._body
        return {
            "id": call.request_id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": call.model,
            "output": output,
            "instructions": body.get("instructions"),
            "metadata": body.get("metadata"),
            "previous_response_id": body.get("previous_response_id"),
            "max_output_tokens": call.job.max_tokens,
            "tools": body.get("tools") or [],
            "tool_choice": body.get("tool_choice") or "auto",
            "parallel_tool_calls": True,
            "background": False,
            "service_tier": "auto",
            "temperature": 1.0,
            "top_p": 1.0,
            "truncation": "disabled",
            "usage": None,
        }

    def _event(self, kind: str, **fields: object) -> str:
        self._events += 1
        return event(kind, sequence_number=self._events - 1, **fields)


def _new_messages(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the input as messages of a chat completion."""
    given = read_field(body, "input", str, list, required=True)
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[dict[str, Any]] = []
    for item in read_list(body, "input") or ():
        message = _chat_message(item)
        last = messages[-1] if messages else {}
        # Reasoning, text and calls of one turn are items of their own.
        if message["role"] == "assistant" == last.get("role") and (
            "tool_calls" in message or not message.keys() & last.keys() - {"role"}
        ):
            last["tool_calls"] = last.pop("tool_calls", []) + message.pop("tool_calls", [])
            last.update(message)
        else:
            messages.append(message)
    return messages


def _chat_message(item: dict[str, Any]) -> dict[str, Any]:
    kind = item.get("type", "message")
    of = "an item"
    if kind == "function_call":
        names = ("call_id", "name", "arguments")
        number, name, arguments = (read_field(item, field, str, required=True, of=of) for field in names)
        made = {"name": name, "arguments": arguments}
        return {"role": "assistant", "tool_calls": [{"id": number, "type": "function", "function": made}]}
    if kind == "function_call_output":
        number = read_field(item, "call_id", str, required=True, of=of)
        output = read_field(item, "output", str, list, required=True, of=of)
        return {"role": "tool", "tool_call_id": number, "content": output}
    if kind == "reasoning":
        if item.get("encrypted_content"):
            raise RejectedError("Encrypted content is not supported.")
        return {"role": "assistant", "reasoning": _first_text(item.get("content") or item.get("summary"))}
    role = read_field(item, "role", str, required=True, of=of)
    if kind != "message" or role not in _ROLES:
        raise InvalidError(f"an item has the type {kind!r:.40} and the role {role!r:.20}", param="body.input")
    content = read_field(item, "content", str, list, required=True, of=of)
    if role == "assistant":
        return {"role": role, "content": _first_text(content)}
    return {"role": role, "content": content if isinstance(content, str) else list(map(_chat_part, content))}


def _first_text(content: object) -> str:
    """Return a text, or that of the first part, the only one that vLLM takes."""
    if isinstance(content, list) and content and isinstance(content[0], dict):
        content = content[0].get("text")
    return content if isinstance(content, str) else ""


def _chat_part(part: object) -> object:
    if isinstance(part, dict) and part.get("type") == "input_image":
        return {"type": "image_url", "image_url": {"url": part.get("image_url")}}
    return part


def _called(body: dict[str, Any], functions: list[dict[str, Any]], messages: list[dict[str, Any]]) -> Tool | None:
    """Return the tool that the answer calls."""
    choice = read_field(body, "tool_choice", str, dict)
    schemas = {function["name"]: function.get("parameters") for function in functions}
    if isinstance(choice, dict):
        return choose_tool(schemas, choice.get("name", ""))
    if choice not in {None, "auto", "none", "required"} or (choice == "required" and not schemas):
        raise InvalidError(f"tool_choice {choice:.20} is unknown, or needs tools", param="tool_choice")
    if choice == "none" or (choice != "required" and is_result(messages)):
        return None
    return choose_tool(schemas)


def _item(call: Call, text: str) -> dict[str, Any]:
    """Return the only item of an answer."""
    number, ended = call.request_id.removeprefix("resp_"), {"status": "completed"}
    if call.tool is None:
        return {"id": f"msg_{number}", "type": "message", "role": "assistant", **ended, "content": [_text(text)]}
    made = {"name": call.tool.name, "arguments": text, **ended}
    return {"id": f"fc_{number}", "type": "function_call", "call_id": call_id(call), **made}


def _place(call: Call, item: dict[str, Any]) -> dict[str, Any]:
    """Return the place in the answer of a text or of arguments."""
    return {"item_id": item["id"], "output_index": 0} | ({"content_index": 0} if call.tool is None else {})


def _text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(call: Call) -> dict[str, Any]:
    prompt, job = len(call.job.tokens), call.job
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": job.cached_tokens},
        "output_tokens": job.max_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + job.max_tokens,
    }
