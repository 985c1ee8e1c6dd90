"""Placements of prompts as messages: requests that were sent to replicas, for the routers of other processes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def encode(worker: str, arguments: Mapping[str, Any]) -> bytes | None:
    """Make the message of a request, given as arguments of `Router.select_worker`, None without a prompt.

    Example:
        >>> decode(encode("replica-a", {"body": b'{"prompt": "Once"}', "path": "/v1/completions"}))["path"]
        '/v1/completions'
    """
    fields = dict(arguments)
    body, tokens = fields.pop("body", b""), b""
    if (given := fields.pop("tokens", None)) is not None:
        import numpy as np

        tokens = np.asarray(given, dtype="<u4").tobytes()
    if not body and not tokens:
        return None
    head = json.dumps({"among": [worker], "bytes": len(body), **fields})
    return b"\n".join((head.encode(), body + tokens))


def decode(message: bytes) -> dict[str, Any]:
    """Return the arguments of `Router.select_worker` that place the request of a message; `among` is its replica."""
    head, _, prompt = message.partition(b"\n")
    fields: dict[str, Any] = json.loads(head)
    end = fields.pop("bytes")
    parts = {"body": prompt[:end], "tokens": prompt[end:]}
    return {**fields, **{name: part for name, part in parts.items() if part}}
