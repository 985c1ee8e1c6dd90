"""The common part of the APIs: fields of bodies, refusals, the call that the engine answers, and how it is answered."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar, Final
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from cachelb._core import Namespace
from cachelb_fakes.fleet.answer import Tool
from cachelb_fakes.fleet.engine import Job
from cachelb_fakes.fleet.options import WorkerOptions
from cachelb_fakes.fleet.tokens import encode, render_chat

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cachelb_fakes.fleet.answer import Answer
    from cachelb_fakes.fleet.engine import Engine

SOURCE_HEADER: Final = "x-kv-cache-source-host-port"
DEFAULT_MODEL: Final = "fake-model"
_ERROR_TYPES: Final = {
    400: "BadRequestError",
    404: "NotFoundError",
    429: "RateLimitError",
    503: "ServiceUnavailableError",
}
_KINDS: Final = {str: "a string", int: "an integer", bool: "a boolean", list: "a list", dict: "an object"}


class RejectedError(Exception):
    """A request that the code of an engine would refuse; without `kind`, its ``type`` is vLLM's own for the status."""

    def __init__(self, message: str, status: int = 400, *, kind: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind or _ERROR_TYPES.get(status, "InternalServerError")
        self.param = param

    def page(self) -> dict[str, Any]:
        """Return the answer, in vLLM's form."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}}


class InvalidError(RejectedError):
    """A request that does not fit the schema, which vLLM's web framework refuses before its own code sees it."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, kind=HTTPStatus.BAD_REQUEST.phrase, param=param)


@dataclass(slots=True)
class Call:
    """One request for an answer."""

    job: Job  # for the engine
    model: str
    stream: bool
    kv_params: dict[str, Any]  # the ``kv_transfer_params``, empty without any
    reports_cached: bool  # the usage reports cached tokens
    tokenized: bool = True  # the prompt had to be tokenized
    tool: Tool | None = None  # the tool that the answer calls
    include_usage: bool = False  # the stream ends with the usage
    return_token_ids: bool = False  # the answer carries token ids
    request_id: str = ""


def parse_body(data: bytes, headers: Mapping[str, str]) -> dict[str, Any]:
    """Read the JSON object of a body.

    vLLM compares the media type letter by letter; older releases answer 415.
    """
    if headers.get("Content-Type", "").lower().split(";", 1)[0] != "application/json":
        raise InvalidError("Unsupported Media Type: Only 'application/json' is allowed")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise InvalidError("the body is no JSON") from None
    if not isinstance(body, dict):
        raise InvalidError("the body must be a JSON object")
    return body


def read_field(values: Mapping[str, Any], name: str, *kinds: type, required: bool = False, of: str = "") -> Any:  # noqa: ANN401 - of one of the kinds
    """Return the field `name` of a body, or of the object `of` in it; None if it is missing or null."""
    value = values.get(name)
    where = f"{name} of {of}" if of else name
    if value is None and required:
        raise InvalidError(f"{where} is required", param=f"body.{name}")
    # A boolean is an integer in Python.
    if value is not None and type(value) not in kinds:
        raise InvalidError(f"{where} must be {' or '.join(map(_KINDS.__getitem__, kinds))}", param=f"body.{name}")
    return value


def make_call(body: Mapping[str, Any], tokens: npt.NDArray[np.uint32], max_tokens: int, options: WorkerOptions) -> Call:
    """Make the call of a body from its prompt and the fields that every API has."""
    model, lora = _find_model(body, options)
    if not len(tokens):
        raise RejectedError("the prompt is empty")
    if len(tokens) + max_tokens > options.kv_tokens:
        raise RejectedError(
            f"This model's maximum context length is {options.kv_tokens} tokens. However, you requested "
            f"{max_tokens} output tokens and your prompt contains {len(tokens)} input tokens."
        )
    salt = read_field(body, "cache_salt", str)
    namespace = Namespace(lora, salt=salt) if lora or salt else None
    return Call(
        Job(tokens, max_tokens, namespace, salt or None),
        model,
        bool(body.get("stream")),
        read_field(body, "kv_transfer_params", dict) or {},
        options.report_cached_tokens,
    )


def _find_model(body: Mapping[str, Any], options: WorkerOptions) -> tuple[str, str | None]:
    """Return the model's name and the adapter, which is every model but the first."""
    name = read_field(body, "model", str)
    if name is None:
        return (options.models or (DEFAULT_MODEL,))[0], None
    if options.models is None or name == options.models[0]:
        return name, None
    if name not in options.models:
        raise RejectedError(f"The model `{name}` does not exist.", 404)
    return name, name


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


def source_of(body: Mapping[str, Any], headers: Mapping[str, str]) -> str | None:
    """Return the address of the source that a request names, ``host:port``: of its host memory, or where it serves.

    vLLM's own parameters go before an action of `kv_hints`, Dynamo's `kv_hint`, and the header of llm-d's sidecar.
    """
    params = body.get("kv_transfer_params")
    params = params if isinstance(params, Mapping) else {}
    match params.get("remote_kv_source"):
        case {"kv_request_id": str(), "remote_host": str(host), "remote_port": int(port)}:
            return f"{host}:{port}"
    for hints in (body.get("kv_hints"), params.get("kv_hint")):
        match hints:
            case {"actions": [{"action_type": "kv.fetch", "payload": {"source_control_endpoint": str(endpoint)}}, *_]}:
                return urlsplit(endpoint).netloc
    return headers.get(SOURCE_HEADER)
