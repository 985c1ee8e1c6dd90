"""The OpenAI-compatible API: parsing of bodies, and the JSON and events of answers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import numpy as np
import numpy.typing as npt

from cachelb._core import Namespace
from cachelb.testing.fleet.engine import Job
from cachelb.testing.fleet.options import WorkerOptions
from cachelb.testing.fleet.tokens import answer_words, encode, render_chat

DEFAULT_MODEL = "fake-model"
_MAX_TOKEN = 2**32 - 1
_ERROR_TYPES = {400: "BadRequestError", 404: "NotFoundError", 429: "RateLimitError", 503: "ServiceUnavailableError"}


class RejectedError(Exception):
    """A request that the code of an engine would refuse."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status
        self.kind = _ERROR_TYPES[status]


class InvalidError(RejectedError):
    """A request that does not fit the schema, which vLLM's web framework refuses before its own code sees it."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.kind = HTTPStatus.BAD_REQUEST.phrase


@dataclass(slots=True)
class Call:
    """One request for a completion."""

    job: Job  # for the engine
    chat: bool  # it came as a conversation
    tokenized: bool  # the prompt had to be tokenized
    model: str
    stream: bool
    include_usage: bool  # the stream ends with the usage
    return_token_ids: bool  # the answer carries token ids
    kv_params: dict[str, Any]  # the ``kv_transfer_params``, empty without any
    reports_cached: bool  # the usage reports cached tokens


def error_body(status: int, message: str, kind: str | None = None) -> bytes:
    """Return the body of an error as vLLM writes it; without `kind`, its ``type`` is vLLM's own for the status."""
    kind = kind or _ERROR_TYPES.get(status, "InternalServerError")
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": status}}).encode()


def parse_body(data: bytes, content_type: str) -> dict[str, Any]:
    """Read the JSON object of a body.

    vLLM compares the media type letter by letter; older releases answer 415.
    """
    if content_type.lower().split(";", 1)[0] != "application/json":
        raise InvalidError("Unsupported Media Type: Only 'application/json' is allowed")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise InvalidError("the body is no JSON") from None
    if not isinstance(body, dict):
        raise InvalidError("the body must be a JSON object")
    return body


def parse_call(body: dict[str, Any], options: WorkerOptions, *, chat: bool) -> Call:
    """Read the call of a body."""
    model, lora = _model(body, options)
    kv_params = body.get("kv_transfer_params") or {}
    if not isinstance(kv_params, dict):
        raise InvalidError("kv_transfer_params must be an object")
    if body.get("n", 1) != 1:
        raise RejectedError(f"n is {body['n']!r:.20}, it must be 1")
    tokens, tokenized = _prompt(body, kv_params, chat=chat)
    if not len(tokens):
        raise RejectedError("the prompt is empty")
    max_tokens = _max_tokens(body, options.default_max_tokens)
    if len(tokens) + max_tokens > options.kv_tokens:
        raise RejectedError(
            f"This model's maximum context length is {options.kv_tokens} tokens. However, you requested "
            f"{max_tokens} output tokens and your prompt contains {len(tokens)} input tokens."
        )
    stream_options = body.get("stream_options") or {}
    if not isinstance(stream_options, dict):
        raise InvalidError("stream_options must be an object")
    salt = body.get("cache_salt")
    if salt is not None and not isinstance(salt, str):
        raise InvalidError("cache_salt must be a string")
    namespace = Namespace(lora, salt=salt) if lora or salt else None
    return Call(
        Job(tokens, max_tokens, namespace, salt or None),
        chat,
        tokenized,
        model,
        bool(body.get("stream")),
        bool(stream_options.get("include_usage")),
        bool(body.get("return_token_ids")),
        kv_params,
        options.report_cached_tokens,
    )


def _model(body: dict[str, Any], options: WorkerOptions) -> tuple[str, str | None]:
    """Return the model's name and the adapter, which is every model but the first."""
    name = body.get("model")
    if name is None:
        return (options.models or (DEFAULT_MODEL,))[0], None
    if not isinstance(name, str):
        raise InvalidError("model must be a string")
    if options.models is None or name == options.models[0]:
        return name, None
    if name not in options.models:
        raise RejectedError(f"The model `{name}` does not exist.", 404)
    return name, name


def _max_tokens(body: dict[str, Any], default: int) -> int:
    for field in ("max_completion_tokens", "max_tokens"):
        value = body.get(field)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise RejectedError(f"{field} must be an integer of at least 1")
        return value
    return default


def _prompt(body: dict[str, Any], kv_params: dict[str, Any], *, chat: bool) -> tuple[npt.NDArray[np.uint32], bool]:
    """Return the prompt's tokens and whether they came as text."""
    given = body.get("prompt_token_ids")
    if given is not None and kv_params.get("do_remote_prefill"):
        return _token_ids(given, "prompt_token_ids"), False  # decodes a prompt that another worker prefilled
    if chat:
        return encode_messages(body), True
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
        if len(prompt) > 1:
            raise RejectedError(f"{len(prompt)} prompts in one request: only one is supported")
        prompt = prompt[0]
    if isinstance(prompt, str):
        return encode(prompt), True
    return _token_ids(prompt, "prompt"), False


def encode_messages(body: dict[str, Any]) -> npt.NDArray[np.uint32]:
    """Tokenize the conversation in a body, with the opening of an answer unless ``add_generation_prompt`` is false."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise InvalidError("messages must be a list with at least one message")
    try:
        opening = bool(body.get("add_generation_prompt", True))
        return encode(render_chat(messages, body.get("tools"), add_generation_prompt=opening))
    except ValueError as error:
        raise RejectedError(str(error)) from None


def _token_ids(value: object, field: str) -> npt.NDArray[np.uint32]:
    if not isinstance(value, list):
        raise InvalidError(f"{field} must be a string or a list of token ids")
    # numpy would round floats, take booleans for numbers, and wrap numbers that are too large.
    if not set(map(type, value)) <= {int} or (value and (min(value) < 0 or max(value) > _MAX_TOKEN)):
        raise InvalidError(f"every token id of {field} must be an integer from 0 to {_MAX_TOKEN}")
    return np.array(value, dtype=np.uint32)


def usage_of(call: Call) -> dict[str, Any]:
    """Return the usage of a finished request."""
    job = call.job
    prompt = len(job.tokens)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": job.max_tokens,
        "total_tokens": prompt + job.max_tokens,
        "prompt_tokens_details": {"cached_tokens": job.cached_tokens} if call.reports_cached else None,
    }


def full_answer(call: Call, request_id: str, kv_params: dict[str, Any] | None) -> bytes:
    """Write an answer in one piece.

    Token ids of the prompt stand where vLLM has them: in the choice of a completion, beside the choices of a chat.
    """
    words, ids = answer_words(call.job.tokens, call.job.max_tokens)
    text = "".join(words)
    choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": "length", "stop_reason": None}
    answer: dict[str, Any] = {
        "id": request_id,
        "object": "chat.completion" if call.chat else "text_completion",
        "created": int(time.time()),
        "model": call.model,
        "choices": [choice],
        "usage": usage_of(call),
        "kv_transfer_params": kv_params,
    }
    if call.chat:
        choice["message"] = {"role": "assistant", "content": text}
    else:
        choice["text"] = text
    if call.return_token_ids:
        choice["token_ids"] = ids
        (answer if call.chat else choice)["prompt_token_ids"] = call.job.tokens.tolist()
    return json.dumps(answer).encode()


def answer_events(call: Call, request_id: str, interval: int) -> Iterator[tuple[bytes, int]]:
    """Write an answer as a stream of events, without those of `closing_events`, each with the tokens it stands for.

    An event has `interval` tokens; the first token is sent alone.
    """
    words, ids = answer_words(call.job.tokens, call.job.max_tokens)
    head = _event_head(call, request_id)
    with_ids = call.return_token_ids
    prompt_ids = f'"prompt_token_ids":{json.dumps(call.job.tokens.tolist())}' if with_ids else ""
    if call.chat:
        extra = f",{prompt_ids}" if with_ids else ""
        role = '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
        yield f'{head}"choices":[{role}]{extra}}}\n\n'.encode(), 0
        before, after = '"choices":[{"index":0,"delta":{"content":"', '"},"logprobs":null,"finish_reason":'
    else:
        before, after = '"choices":[{"index":0,"text":"', '","logprobs":null,"finish_reason":'
    start, end, extra = 0, 1, ""
    while start < len(words):
        if with_ids:
            extra = f',"token_ids":{json.dumps(ids[start:end])}'
            if not start and not call.chat:
                extra += f",{prompt_ids}"
        text = "".join(words[start:end])
        reason = '"length"' if end >= len(words) else "null"
        yield f"{head}{before}{text}{after}{reason}{extra}}}]}}\n\n".encode(), end - start
        start, end = end, min(end + interval, len(words))


def closing_events(call: Call, request_id: str) -> bytes:
    """Write the end of a stream: the usage if it was requested, and ``[DONE]``."""
    if not call.include_usage:
        return b"data: [DONE]\n\n"
    usage = json.dumps(usage_of(call))
    return f'{_event_head(call, request_id)}"choices":[],"usage":{usage}}}\n\ndata: [DONE]\n\n'.encode()


def _event_head(call: Call, request_id: str) -> str:
    kind = "chat.completion.chunk" if call.chat else "text_completion"
    return (
        f'data: {{"id":{json.dumps(request_id)},"object":"{kind}","created":{int(time.time())},'
        f'"model":{json.dumps(call.model)},'
    )
