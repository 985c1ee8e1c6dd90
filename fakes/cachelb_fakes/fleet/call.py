"""The common part of the APIs: fields of bodies, refusals, and the call that the engine answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cachelb._core import Namespace
from cachelb_fakes.fleet.answer import Tool
from cachelb_fakes.fleet.engine import Job
from cachelb_fakes.fleet.options import WorkerOptions

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
