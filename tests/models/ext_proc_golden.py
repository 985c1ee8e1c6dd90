"""Replies that the endpoint picker gave when it was written in Python, to seeded sequences of messages."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
from pathlib import Path
from typing import Any

from tests.models.ext_proc_messages import ProcessingResponse
from tests.models.ext_proc_sequences import URLS, sequence
from tests.models.own_policy import Own

from cachelb import Router

ROUNDS = 40
LENGTH = 50
"""Sequences of a round, which share a router."""

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "ext_proc_golden.json.gz"
ADDED = "x-llm-d-request-dropped-reason"
"""A header that the one in Python did not send."""


def options_of(round_: int) -> dict[str, Any]:
    """Return the options of the picker."""
    return {
        "max_body_bytes": 2500,
        "large_bodies": ["pass", "refuse"][round_ % 2],
        "default_body_mode": ["duplex", "buffered", "streamed", "none"][round_ % 4],
        "rewrite_model": round_ % 3 == 0,
        "conformance": round_ % 5 == 0,
        "fallbacks": round_ % 4,
        "priorities": {"batch": -1, "chat": 3},
        "shed_inflight": 1 if round_ % 2 else None,
        "policy_timeout_s": 60.0,
        "expose_headers": ["x-cachelb-worker", "x-cachelb-reason", "x-cachelb-matched-tokens"],
    }


def has_own_time(round_: int) -> bool:
    """Return whether the router's clock is native, so that picks are made where messages are read."""
    return round_ % 2 == 0


def messages_of(round_: int, index: int) -> list[bytes]:
    """Return the messages of a sequence; how long a worker rests after an error depends on the clock."""
    return sequence(round_ * LENGTH + index, errors=not has_own_time(round_))


def router_of(round_: int) -> Router[str]:
    """Make the router: its picks depend neither on time nor on what policies become."""
    policy: Any = ["round-robin", Own(lambda fleet: len(fleet.keys) - 1)][round_ % 5 == 4]
    router = Router(URLS[:2], seed=round_, policy=policy, clock=None if has_own_time(round_) else lambda: 7.0)
    router.add_worker(URLS[2], dp_size=2 if round_ % 3 == 1 else 1)
    if round_ % 7 == 0:
        router.set_ready(URLS[1], False)
    return router


def recorded() -> list[dict[str, Any]]:
    """Return for each round the replies to each sequence, and what was counted in the end."""
    rounds: list[dict[str, Any]] = json.loads(gzip.decompress(GOLDEN.read_bytes()))
    for each in rounds:
        each["replies"] = [
            [ProcessingResponse.FromString(base64.b64decode(reply)) for reply in replies] for replies in each["replies"]
        ]
    return rounds


def normal(replies: list[Any]) -> list[Any]:
    """Leave out what is new, and how JSON with another model is written and cut."""
    joined: list[Any] = []
    for reply in replies:
        mutation = reply.request_body.response.body_mutation
        before = joined[-1].request_body.response.body_mutation.streamed_response if joined else None
        if before is not None and before.body and mutation.streamed_response.body:
            before.body += mutation.streamed_response.body
            before.end_of_stream = mutation.streamed_response.end_of_stream
        else:
            joined.append(type(reply).FromString(reply.SerializeToString()))
    for reply in joined:
        kind = reply.WhichOneof("response")
        if kind == "immediate_response":
            _drop(reply.immediate_response.headers, ADDED)
        if kind == "request_body":
            common = reply.request_body.response
            if common.body_mutation.body:
                _drop(common.header_mutation, "content-length", str(len(common.body_mutation.body)))
                common.body_mutation.body = _sorted(common.body_mutation.body)
            elif common.body_mutation.streamed_response.body:
                streamed = common.body_mutation.streamed_response
                streamed.body = _sorted(streamed.body)
    return joined


def _sorted(body: bytes) -> bytes:
    with contextlib.suppress(ValueError):
        return json.dumps(json.loads(body), sort_keys=True).encode()
    return body


def _drop(mutation: Any, name: str, value: str | None = None) -> None:
    kept = []
    for option in mutation.set_headers:
        if option.header.key == name:
            assert value is None or option.header.raw_value.decode() == value
        else:
            kept.append(type(option).FromString(option.SerializeToString()))
    del mutation.set_headers[:]
    mutation.set_headers.extend(kept)
