"""The completions, chat completions and embeddings of the OpenAI API; the latter are equal for equal inputs."""

from __future__ import annotations

import base64
import json
import zlib
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np
import numpy.typing as npt

from cachelb_fakes.fleet.apis.dialect import (
    Dialect,
    InvalidError,
    RejectedError,
    choose_tool,
    encode_chat,
    is_result,
    make_call,
    read_field,
)
from cachelb_fakes.fleet.tokens import encode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cachelb_fakes.fleet.answer import Answer, Tool
    from cachelb_fakes.fleet.apis.dialect import Call

_MAX_TOKEN: Final = 2**32 - 1


class _OpenAi(Dialect):
    """The common part of both APIs."""

    _object: str
    _chunk: str

    def parse(self, body: dict[str, Any]) -> Call:
        """Read the call of a body."""
        if body.get("n", 1) != 1:
            raise RejectedError(f"n is {body['n']!r:.20}, it must be 1")
        given = body.get("prompt_token_ids")
        # Decodes a prompt that another worker prefilled.
        remote = given is not None and (read_field(body, "kv_transfer_params", dict) or {}).get("do_remote_prefill")
        tokens, tokenized = (token_ids(given, "prompt_token_ids"), False) if remote else self._prompt(body)
        options = self._engine.options
        call = make_call(body, tokens, _max_tokens(body, options.default_max_tokens), options)
        call.tokenized = tokenized
        call.include_usage = bool((read_field(body, "stream_options", dict) or {}).get("include_usage"))
        call.return_token_ids = bool(body.get("return_token_ids"))
        return call

    def _prompt(self, body: dict[str, Any]) -> tuple[npt.NDArray[np.uint32], bool]:
        """Return the prompt's tokens and whether they came as text."""
        raise NotImplementedError

    def whole(self, call: Call, answer: Answer, kv_params: dict[str, Any] | None) -> dict[str, Any]:
        """Return the answer in one piece."""
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": _reason(call), "stop_reason": None}
        if call.return_token_ids:
            choice["token_ids"] = answer.ids
        more = {"choices": [choice], "usage": usage_of(call), "kv_transfer_params": kv_params}
        return self._head(call, self._object) | more

    def closing(self, call: Call, answer: Answer) -> str:  # noqa: ARG002 - other APIs repeat the answer here
        """Return the end of the stream."""
        usage = self._event(call, [], usage=usage_of(call)) if call.include_usage else ""
        return f"{usage}data: [DONE]\n\n"

    def _event(self, call: Call, choices: list[dict[str, Any]], **more: object) -> str:
        return f"data: {json.dumps({**self._head(call, self._chunk), 'choices': choices, **more})}\n\n"

    def _choices(self, call: Call, answer: Answer, interval: int) -> Iterator[tuple[str, dict[str, Any], int]]:
        """Return the text of every event, its choice and its tokens."""
        left = len(answer.ids)
        for text, ids in answer.parts(interval):
            left -= len(ids)
            choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": None if left else _reason(call)}
            if call.return_token_ids:
                choice["token_ids"] = ids
            yield text, choice, len(ids)


class Completions(_OpenAi):
    """``/v1/completions``. Token ids of the prompt are in the choice."""

    id_prefix = "cmpl-"
    _object = _chunk = "text_completion"

    def _prompt(self, body: dict[str, Any]) -> tuple[npt.NDArray[np.uint32], bool]:
        prompt = body.get("prompt")
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
            if len(prompt) > 1:
                raise RejectedError(f"{len(prompt)} prompts in one request: only one is supported")
            prompt = prompt[0]
        if isinstance(prompt, str):
            return encode(prompt), True
        return token_ids(prompt, "prompt"), False

    def whole(self, call: Call, answer: Answer, kv_params: dict[str, Any] | None) -> dict[str, Any]:
        """Return the answer in one piece."""
        page = super().whole(call, answer, kv_params)
        page["choices"][0] |= {"text": answer.text, **_prompt_ids(call)}
        return page

    def events(self, call: Call, answer: Answer, interval: int) -> Iterator[tuple[str, int]]:
        """Return the stream of an answer without its end."""
        first = _prompt_ids(call)
        for text, choice, tokens in self._choices(call, answer, interval):
            yield self._event(call, [{"text": text, **choice, **first}]), tokens
            first = {}


class ChatCompletions(_OpenAi):
    """``/v1/chat/completions``. Token ids of the prompt are beside the choices."""

    id_prefix = "chatcmpl-"
    _object = "chat.completion"
    _chunk = "chat.completion.chunk"

    def parse(self, body: dict[str, Any]) -> Call:
        """Read the call of a body."""
        call = super().parse(body)
        call.tool = _called(body)
        return call

    def _prompt(self, body: dict[str, Any]) -> tuple[npt.NDArray[np.uint32], bool]:
        return encode_messages(body), True

    def whole(self, call: Call, answer: Answer, kv_params: dict[str, Any] | None) -> dict[str, Any]:
        """Return the answer in one piece."""
        page = super().whole(call, answer, kv_params)
        message: dict[str, Any] = {"role": "assistant", "content": answer.text}
        if call.tool is not None:
            made = {"name": call.tool.name, "arguments": answer.text}
            message |= {"content": None, "tool_calls": [{"id": call_id(call), "type": "function", "function": made}]}
        page["choices"][0]["message"] = message
        return page | _prompt_ids(call)

    def events(self, call: Call, answer: Answer, interval: int) -> Iterator[tuple[str, int]]:
        """Return the stream of an answer without its end."""
        role = {"role": "assistant", "content": ""}
        opening = {"index": 0, "delta": role, "logprobs": None, "finish_reason": None}
        yield self._event(call, [opening], **_prompt_ids(call)), 0
        head: dict[str, Any] = {}
        if call.tool is not None:
            head = {"id": call_id(call), "type": "function", "function": {"name": call.tool.name}}
        for text, choice, tokens in self._choices(call, answer, interval):
            delta: dict[str, Any] = {"content": text}
            if call.tool is not None:
                function = {**head.pop("function", {}), "arguments": text}
                delta = {"tool_calls": [{"index": 0, **head, "function": function}]}
                head = {}
            yield self._event(call, [{"delta": delta, **choice}]), tokens


def encode_messages(body: dict[str, Any]) -> npt.NDArray[np.uint32]:
    """Tokenize the conversation in a body, with the opening of an answer unless ``add_generation_prompt`` is false."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise InvalidError("messages must be a list with at least one message")
    tools = read_field(body, "tools", list)
    return encode_chat(messages, tools, opening=bool(body.get("add_generation_prompt", True)))


def usage_of(call: Call) -> dict[str, Any]:
    """Return the usage of a finished request."""
    job, prompt = call.job, len(call.job.tokens)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": job.max_tokens,
        "total_tokens": prompt + job.max_tokens,
        "prompt_tokens_details": {"cached_tokens": job.cached_tokens} if call.reports_cached else None,
    }


def call_id(call: Call) -> str:
    """Name the call of a tool in an answer."""
    return f"call_{call.request_id}"


def _called(body: dict[str, Any]) -> Tool | None:
    """Return the tool that the answer calls. The tools themselves are already checked."""
    tools, choice = body.get("tools"), read_field(body, "tool_choice", str, dict)
    if tools == []:
        raise InvalidError("`tools` must not be an empty array.", param="tools")
    if choice == "none" or (choice is None and tools is None):
        return None
    if tools is None:
        raise InvalidError("When using `tool_choice`, `tools` must be set.", param="tool_choice")
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") for tool in tools}
    if isinstance(choice, dict):
        return choose_tool(schemas, (read_field(choice, "function", dict, of="tool_choice") or {}).get("name", ""))
    if choice not in {None, "auto", "required"}:
        raise InvalidError(f"Invalid value for `tool_choice`: {choice:.20}!", param="tool_choice")
    return None if choice != "required" and is_result(body.get("messages", ())) else choose_tool(schemas)


def _reason(call: Call) -> str:
    """Return why the answer ends. vLLM counts a tool that the request names as no call of the model."""
    if call.tool is None:
        return "length"
    return "stop" if call.tool.named else "tool_calls"


def _prompt_ids(call: Call) -> dict[str, Any]:
    return {"prompt_token_ids": call.job.tokens.tolist()} if call.return_token_ids else {}


def _max_tokens(body: dict[str, Any], default: int) -> int:
    for field in ("max_completion_tokens", "max_tokens"):
        value = body.get(field)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise RejectedError(f"{field} must be an integer of at least 1")
        return value
    return default


def token_ids(value: object, field: str) -> npt.NDArray[np.uint32]:
    """Read token ids of a body."""
    if not isinstance(value, list):
        raise InvalidError(f"{field} must be a string or a list of token ids")
    # numpy would round floats, take booleans for numbers, and wrap numbers that are too large.
    if not set(map(type, value)) <= {int} or (value and (min(value) < 0 or max(value) > _MAX_TOKEN)):
        raise InvalidError(f"every token id of {field} must be an integer from 0 to {_MAX_TOKEN}")
    return np.array(value, dtype=np.uint32)


_DIMENSIONS: Final = 64
_MOST_DIMENSIONS: Final = 4096


class Embeddings(Dialect):
    """``/v1/embeddings``, of one input or of several, which the engine computes as one prompt."""

    id_prefix = "embd-"

    def parse(self, body: dict[str, Any]) -> Call:
        """Read the call of a body."""
        if body.get("stream"):
            raise RejectedError("embeddings are not streamed")
        self._inputs = _inputs(body.get("input"))
        dimensions = read_field(body, "dimensions", int)
        self._dimensions = _DIMENSIONS if dimensions is None else dimensions
        if not 1 <= self._dimensions <= _MOST_DIMENSIONS:
            raise RejectedError(f"dimensions must be from 1 to {_MOST_DIMENSIONS}")
        self._form = read_field(body, "encoding_format", str) or "float"
        if self._form not in {"float", "base64"}:
            raise RejectedError("encoding_format must be float or base64")
        return make_call(body, np.concatenate(self._inputs), 1, self._engine.options)

    def whole(self, call: Call, answer: Answer, kv_params: dict[str, Any] | None) -> dict[str, Any]:  # noqa: ARG002 - no text
        """Return the vectors."""
        tokens, vectors = len(call.job.tokens), enumerate(map(self._vector, self._inputs))
        data = [{"object": "embedding", "index": place, "embedding": vector} for place, vector in vectors]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}
        return self._head(call, "list") | {"data": data, "usage": usage}

    def _vector(self, tokens: npt.NDArray[np.uint32]) -> list[float] | str:
        """Draw a vector of length 1 with the tokens as its seed."""
        drawn = np.random.default_rng(zlib.crc32(tokens.data)).standard_normal(self._dimensions)
        vector = (drawn / np.linalg.norm(drawn)).astype("<f4")
        return base64.b64encode(vector.data).decode() if self._form == "base64" else vector.tolist()

    def events(self, call: Call, answer: Answer, interval: int) -> NoReturn:
        """Never called: `parse` refuses streams."""
        raise NotImplementedError

    def closing(self, call: Call, answer: Answer) -> NoReturn:
        """Never called either."""
        raise NotImplementedError


def _inputs(given: object) -> list[npt.NDArray[np.uint32]]:
    """Read the inputs: a text, token ids, or a list of either."""
    if given == []:
        raise InvalidError("input must have at least one text")
    if isinstance(given, list) and isinstance(given[0], str | list):
        if not all(isinstance(each, type(given[0])) for each in given):
            raise InvalidError("input must be a string or a list of strings or of token ids")
        return [one for each in given for one in _inputs(each)]
    return [encode(given) if isinstance(given, str) else token_ids(given, "input")]
