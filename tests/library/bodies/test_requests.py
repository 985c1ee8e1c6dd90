"""Requests before they are routed: read within bounds, or serialised from what a framework has parsed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from types import MappingProxyType
from typing import Any

import pytest

import cachelb
from cachelb import RequestBodies, Router
from cachelb.requests import RequestError, encode_body, read_request

CHAT = "/v1/chat/completions"
LONG = "Sé exact, and cite 字 sources 😀. " * 60
TURNS: list[dict[str, Any]] = [
    {"role": "system", "content": LONG},
    {
        "role": "user",
        "content": [{"type": "text", "text": LONG}, {"type": "image_url", "image_url": {"url": "data:x"}}],
    },
    {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "1", "content": LONG * 20},
]


async def come(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


# --- bodies as they arrive ---


def test_request_is_read_within_bounds() -> None:
    assert asyncio.run(read_request(come(b"{", b"", b"}"), max_bytes=2)) == b"{}"
    with pytest.raises(RequestError, match="longer than 100 bytes") as caught:
        asyncio.run(read_request(come(b"x" * 60, b"x" * 41), max_bytes=100))
    assert caught.value.status == 413


def test_slow_request_is_given_up() -> None:
    async def stall() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    with pytest.raises(RequestError, match="longer than 0") as caught:
        asyncio.run(read_request(stall(), timeout_s=0))
    assert caught.value.status == 408


# --- parsed messages ---


@pytest.mark.parametrize("settings", [{}, {"engine": "vllm", "tools_place": "after-system", "keeps_reasoning": True}])
@pytest.mark.parametrize("count", range(1, 5))
def test_messages_are_the_prompt_of_a_body_with_them(settings: Any, count: int) -> None:
    router = Router(["a", "b"], seed=1, bodies=RequestBodies(**settings))
    turns = TURNS[:count]
    written = router.select_worker(body=json.dumps({"max_tokens": 1, "messages": turns}).encode(), path=CHAT)
    written.on_complete()
    again = router.select_worker(messages=turns)
    assert again.prompt_tokens == written.prompt_tokens
    assert again.prompt_tokens - 16 < again.matched_tokens <= again.prompt_tokens
    assert again.retry().prompt_tokens == written.prompt_tokens
    assert router.explain(messages=turns).prompt_tokens == written.prompt_tokens
    assert router.stats().bodies.kinds == {"chat": 2}


def test_messages_of_any_mapping_are_the_same() -> None:
    class Model:
        def model_dump(self) -> dict[str, Any]:
            return TURNS[1]

    router = Router(["a"], seed=1)
    router.select_worker(messages=TURNS[:2]).on_complete()
    length = router.select_worker(messages=TURNS[:2], dry_run=True).prompt_tokens
    forms: list[Any] = [tuple(map(MappingProxyType, TURNS[:2])), [TURNS[0], Model()]]
    for messages in forms:
        assert router.select_worker(messages=messages, dry_run=True).matched_tokens > length - 16


def test_messages_beside_a_body_win_and_its_hints_count() -> None:
    router = Router(["a"], seed=1)
    body = encode_body({"prompt": "short", "cache_salt": "s"})
    for _ in range(2):
        decision = router.select_worker(messages=TURNS, body=body, path="/v1/completions")
        decision.on_complete()
    assert decision.matched_tokens > 100
    assert router.select_worker(messages=TURNS).matched_tokens == 0, "the salt of the body keeps them apart"


def test_half_of_a_surrogate_pair_is_replaced() -> None:
    router = Router(["a"], seed=1)
    router.select_worker(messages=[{"role": "user", "content": "\ud83d" + LONG}]).on_complete()
    assert router.select_worker(messages=[{"role": "user", "content": "?" + LONG}]).matched_tokens > 100


def test_too_long_messages_are_treated_like_a_body() -> None:
    for strict in (False, True):
        router = Router(["a"], bodies=RequestBodies(max_bytes=100, strict=strict))
        assert router.select_worker(messages=TURNS).prompt_tokens > 1000
        assert router.stats().bodies.errors == {"too-large": 1}


LOOP: dict[str, Any] = {"secret": "secret"}
LOOP["self"] = LOOP
USER = {"role": "user", "content": "secret"}


def nested(depth: int) -> Any:
    value: Any = "secret"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("messages", "kind", "text"),
    [
        ("secret", TypeError, "messages must be a list of mappings, got str"),
        (USER, TypeError, "messages must be a list of mappings, got dict"),
        ([USER, "secret"], TypeError, r"messages\[1\] must be a mapping, got str"),
        ([USER | {"x": {"secret"}}], TypeError, "messages must hold values that JSON knows: it is set"),
        ([{"role": "user", "content": b"secret"}], TypeError, "messages must hold values that JSON knows: it is bytes"),
        ([USER | {"x": {("secret",): 1}}], TypeError, "keys must be str"),
        ([USER | {"x": float("nan")}], ValueError, "messages must hold finite numbers"),
        ([USER | {"x": LOOP}], ValueError, "not contain itself"),
        ([USER | {"x": nested(100_000)}], ValueError, "not be nested deeply"),
    ],
    ids=range(9),
)
def test_bad_messages_are_refused_without_showing_content(messages: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text) as caught:
        Router(["a"]).select_worker(messages=messages)
    assert "secret" not in str(caught.value)
    assert not isinstance(caught.value, cachelb.errors.BodyError)


def test_tokens_may_be_the_head_of_a_longer_prompt() -> None:
    router = Router(["a"])
    assert router.select_worker(tokens=range(64), prompt_tokens=100).prompt_tokens == 100
    with pytest.raises(ValueError, match="prompt_tokens is 63 but tokens holds 64"):
        router.select_worker(tokens=range(64), prompt_tokens=63)
