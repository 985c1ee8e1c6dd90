"""Replies of the endpoint picker to the proxy, built from plain values."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from tests.models.python_picker.messages import OVERWRITE_OR_ADD, ProcessingResponse
from tests.models.python_picker.picking import Pick, Refusal

DESTINATION = "x-gateway-destination-endpoint"
NAMESPACE = "envoy.lb"

CHUNK_BYTES = 62_000
"""Bytes of a body in one message. Proxies want at most 64 KiB."""


def headers_reply(part: str, headers: Mapping[str, str] | None = None) -> Any:  # noqa: ANN401 - a message
    """Let headers pass, and set some. `part` is "request_headers" or "response_headers"."""
    reply = ProcessingResponse()
    common = getattr(reply, part).response
    common.SetInParent()
    _set(common.header_mutation, headers or {})
    return reply


def picked_reply(part: str, pick: Pick) -> Any:  # noqa: ANN401 - a message
    """Set the picked endpoint in a header and, with the same value, in the dynamic metadata.

    `part` is "request_headers", or "request_body" where the proxy holds the headers back until then.
    """
    reply = ProcessingResponse()
    endpoints = ",".join(pick.endpoints)
    headers = {DESTINATION: endpoints}
    rank = pick.decision.dp_rank
    if rank is not None:
        headers["x-data-parallel-rank"] = str(rank)
    common = getattr(reply, part).response
    if pick.body is not None and part == "request_body":
        # The proxy checks the length against the header; where it keeps no body, it drops the header itself.
        headers["content-length"] = str(len(pick.body))
        common.body_mutation.body = pick.body
    _set(common.header_mutation, headers)
    common.clear_route_cache = True
    reply.dynamic_metadata.update({NAMESPACE: {DESTINATION: endpoints}})
    return reply


def body_reply(part: str) -> Any:  # noqa: ANN401 - a message
    """Let a part of a body pass that the proxy keeps. `part` is "request_body" or "response_body"."""
    reply = ProcessingResponse()
    getattr(reply, part).response.SetInParent()
    return reply


def streamed_replies(part: str, body: bytes, *, end: bool) -> Iterator[Any]:
    """Give a part of a body back to a proxy that does not keep it; `end` means that not even trailers follow.

    Each reply is made once the one before was sent: a proxy may be slow to read them.
    """
    for start in range(0, max(len(body), 1), CHUNK_BYTES):
        reply = ProcessingResponse()
        streamed = getattr(reply, part).response.body_mutation.streamed_response
        streamed.SetInParent()
        streamed.body = body[start : start + CHUNK_BYTES]
        streamed.end_of_stream = end and start + CHUNK_BYTES >= len(body)
        yield reply


def trailers_reply(part: str) -> Any:  # noqa: ANN401 - a message
    """Let trailers pass. `part` is "request_trailers" or "response_trailers"."""
    reply = ProcessingResponse()
    getattr(reply, part).SetInParent()
    return reply


def refusal_reply(refusal: Refusal) -> Any:  # noqa: ANN401 - a message
    """Answer the client in place of a worker, which ends the exchange."""
    reply = ProcessingResponse()
    answer = reply.immediate_response
    answer.status.code = refusal.status
    headers = {"content-type": "application/json"}
    if refusal.retry_after_s is not None:
        headers["retry-after"] = str(math.ceil(refusal.retry_after_s))
    _set(answer.headers, headers)
    error = {"message": refusal.message, "type": refusal.reason.replace("-", "_"), "code": refusal.status}
    answer.body = json.dumps({"error": error}).encode()
    answer.details = f"cachelb_{refusal.reason.replace('-', '_')}"
    return reply


def _set(mutation: Any, headers: Mapping[str, str]) -> None:  # noqa: ANN401 - a message
    for name, value in headers.items():
        option = mutation.set_headers.add(append_action=OVERWRITE_OR_ADD)
        option.header.key = name
        option.header.raw_value = value.encode("latin-1", "replace")
