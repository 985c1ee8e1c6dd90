"""What is read from requests and answers of the OpenAI API."""

from __future__ import annotations

from typing import Any

import pytest

from cachelb import Router
from cachelb.openai import read_usage, routing_arguments
from cachelb.text import render_messages

MESSAGES = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, {}),
        ({"prompt": "abc"}, {"text": "abc"}),
        ({"prompt": ["abc", "def"]}, {"text": "abc"}),
        ({"prompt": [5, 6]}, {"tokens": [5, 6]}),
        ({"prompt": [[5, 6], [7]]}, {"tokens": [5, 6]}),
        ({"prompt": []}, {"tokens": []}),
        ({"prompt": "half \ud800"}, {"text": "half ?"}),
        ({"messages": MESSAGES}, {"text": render_messages(MESSAGES)}),
        ({"messages": MESSAGES, "tools": TOOLS}, {"text": render_messages(MESSAGES, TOOLS)}),
        ({"prompt": "a", "model": "m", "cache_salt": "s"}, {"text": "a", "model": "m", "cache_salt": "s"}),
        ({"prompt": "a", "model": 7, "cache_salt": 7}, {"text": "a"}),
        ({"prompt": "a", "max_tokens": 9}, {"text": "a", "max_output_tokens": 9}),
        ({"prompt": "a", "max_tokens": 9, "max_completion_tokens": 8}, {"text": "a", "max_output_tokens": 8}),
        ({"prompt": "a", "max_tokens": -1}, {"text": "a"}),
        ({"prompt": "a", "max_tokens": True}, {"text": "a"}),
        ({"prompt": "a", "user": "ann"}, {"text": "a", "session": "ann"}),
    ],
)
def test_request_becomes_what_the_router_takes(body: dict[str, Any], expected: dict[str, Any]) -> None:
    found = routing_arguments(body)
    assert found == expected
    assert Router(["a"]).select_worker(**found).worker == "a"


def test_session_comes_from_headers_first() -> None:
    assert routing_arguments({"user": "ann"}, {"X-Session-Id": "s1"})["session"] == "s1"
    assert "session" not in routing_arguments({}, {"X-Request-Id": "r1"})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "the body must be a JSON object, got list"),
        (None, "the body must be a JSON object, got NoneType"),
        ({"prompt": 7}, "prompt must be a string or a list of token ids, got int"),
        ({"prompt": {"secret": 1}}, "prompt must be a string or a list of token ids, got dict"),
        ({"messages": "secret"}, "messages must be a list"),
    ],
)
def test_malformed_body_is_refused_without_showing_it(body: object, message: str) -> None:
    with pytest.raises(TypeError, match=message) as error:
        routing_arguments(body)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        (b"", {}),
        (b'"usage":{"prompt_tokens":7,"completion_tokens":2}', {"prompt_tokens": 7, "output_tokens": 2}),
        (b'"usage": {"prompt_tokens_details": {"cached_tokens" : 48}}', {"cached_tokens": 48}),
        (b'"prompt_tokens_details":{"cached_tokens":null}', {}),
        (b'"usage":{"completion_tokens":1}} data: "usage":{"completion_tokens":2}', {"output_tokens": 2}),
        (rb'"text":"they say \"cached_tokens\": 99"', {}),
        (b'"cached_tokens": 9999999999999999999999999', {}),
    ],
)
def test_usage_is_found_where_it_is_and_only_there(tail: bytes, expected: dict[str, int]) -> None:
    assert read_usage(tail) == expected
