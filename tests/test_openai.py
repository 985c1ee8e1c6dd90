"""What is read from requests and answers of the OpenAI API."""

from __future__ import annotations

import asyncio
import json
import threading
from array import array
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cachelb import Router
from cachelb.openai import RequestError, header_filter, read_request, read_usage, routing_arguments
from cachelb.text import render_messages

MESSAGES = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, {}),
        ({"prompt": "abc"}, {"text": "abc"}),
        ({"prompt": ["abc"]}, {"text": "abc"}),
        ({"prompt": ["abc", "déf" * 8]}, {"text": "abc", "prompt_tokens": 9}),
        ({"prompt": [5, 6]}, {"tokens": [5, 6]}),
        ({"prompt": [[5, 6]]}, {"tokens": [5, 6]}),
        ({"prompt": [[5, 6], [7], "eight", None, 9]}, {"tokens": [5, 6], "prompt_tokens": 5}),
        ({"prompt": [[], [7]]}, {"tokens": [], "prompt_tokens": 1}),
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


@pytest.mark.parametrize(
    ("prompts", "tokens"),
    [([list(range(64)), list(range(100, 400))], 364), (["a" * 256, "b" * 1200], 364)],
    ids=["tokens", "text"],
)
def test_of_several_prompts_all_are_booked_and_the_first_is_remembered(prompts: list[Any], tokens: int) -> None:
    router = Router(["a"])
    decision = router.select_worker(**routing_arguments({"prompt": prompts}))
    assert decision.prompt_tokens == router.stats().workers[0].pending_prefill_tokens == tokens
    decision.on_complete()
    again = router.select_worker(**routing_arguments({"prompt": prompts}))
    assert (again.matched_tokens, router.stats().workers[0].pending_prefill_tokens) == (64, tokens - 64)
    assert router.select_worker(**routing_arguments({"prompt": prompts[1]})).matched_tokens == 0


def test_tokens_may_be_the_head_of_a_longer_prompt() -> None:
    router = Router(["a"])
    assert router.select_worker(tokens=range(64), prompt_tokens=100).prompt_tokens == 100
    with pytest.raises(ValueError, match="prompt_tokens is 63 but tokens holds 64"):
        router.select_worker(tokens=range(64), prompt_tokens=63)


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


async def come(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


def test_request_is_read_within_bounds() -> None:
    body = json.dumps({"prompt": [1, 2, 3], "user": "ann"}).encode()
    data, found = asyncio.run(read_request(come(body[:9], body[9:]), {"X-Session-Id": "s1"}, max_bytes=len(body)))
    assert data == body
    assert (found["tokens"], found["session"]) == (array("I", [1, 2, 3]), "s1"), "headers come first"
    assert "session" not in routing_arguments({}, {"X-Request-Id": "r1"})


@pytest.mark.parametrize(
    ("chunks", "status", "message"),
    [
        ([b"x" * 60, b"x" * 41], 413, "longer than 100 bytes"),
        *(([body], 400, "no request for a completion") for body in (b"{", b"\xff", b"[" * 100)),
        ([b'{"prompt": [1, 4294967296]}'], 400, "no integer from 0 to 4294967295"),
        ([b'{"prompt": [1, 1.5]}'], 400, "no integer from 0 to 4294967295"),
    ],
)
def test_request_that_cannot_be_read_has_a_status(chunks: list[bytes], status: int, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        asyncio.run(read_request(come(*chunks), max_bytes=100))
    assert caught.value.status == status


def test_slow_request_is_given_up() -> None:
    async def stall() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    with pytest.raises(RequestError, match="longer than 0") as caught:
        asyncio.run(read_request(stall(), timeout_s=0))
    assert caught.value.status == 408


def test_large_request_is_parsed_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    real = json.loads

    def loads(data: bytes) -> Any:
        threads.append(threading.current_thread())
        return real(data)

    monkeypatch.setattr("cachelb.openai.json.loads", loads)
    for size in (100, 100_000):
        asyncio.run(read_request(come(json.dumps({"prompt": "a" * size}).encode())))
    assert [thread is threading.main_thread() for thread in threads] == [True, False]


def test_headers_leave_only_by_name() -> None:
    headers = Router(["http://gpu0:8000"]).select_worker().headers
    assert header_filter()(headers) == {}
    assert header_filter(["X-Cachelb-Reason"])(headers) == {"x-cachelb-reason": "only-one"}
    assert header_filter("x-cachelb-worker")(headers) == {"x-cachelb-worker": "http://gpu0:8000"}
    with pytest.raises(ValueError, match="'x-data-parallel-rank'; there are x-cachelb-decision, "):
        header_filter(["x-data-parallel-rank"])
