"""Helpers for the tests of several gateways."""

from __future__ import annotations

import json
from http.client import HTTPConnection

from tests.http_client import JSON, connect

from cachelb import Router


def begin_stream(url: str, prompt: str, **fields: object) -> HTTPConnection:
    """Send a request for a stream, and read nothing yet."""
    connection = connect(url)
    body = json.dumps({"prompt": prompt, "stream": True, "max_tokens": 8, **fields})
    connection.request("POST", "/v1/completions", body, JSON)
    return connection


def endings(router: Router[str]) -> dict[str, int]:
    """Count the requests that ended, by how."""
    return {name: count for name, count in router.stats().endings.items() if count}
