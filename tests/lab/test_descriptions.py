"""`describe_body`: what is read of a body, and where the prompts of two bodies differ."""

from __future__ import annotations

import json
from typing import Any

import pytest

import cachelb
from cachelb_lab.descriptions import BodyDescription, describe_body

SYSTEM = "Answer in one short sentence. " * 20
TALK = [
    {"role": "system", "content": SYSTEM},
    {"role": "user", "content": "Do magpies sing?"},
    {"role": "assistant", "content": "Seldom. " * 40},
    {"role": "user", "content": "Do robins?"},
]
TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}]
OTHERS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
AFTER = cachelb.RequestBodies(tools_place="after-system")


def read(fields: dict[str, Any], path: str = "/v1/chat/completions", **options: Any) -> BodyDescription:
    return describe_body(json.dumps(fields).encode(), path=path, **options)


def test_every_figure_of_a_body_is_read() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    content = [{"type": "text", "text": "What is it?"}, image]
    fields = {
        "model": "m",
        "messages": [TALK[0], {"role": "user", "content": content}],
        "max_completion_tokens": 64,
        "priority": 3,
        "stream": True,
        "n": 2,
        "lora_path": "a",
    }
    found = read(fields, headers={"x-session-id": "secret-name", "X-Vllm-Priority": "5"}).as_dict()
    assert found.pop("prompt_bytes") > len(SYSTEM)
    assert found.pop("tokens") > 2 * len(SYSTEM) // 4
    assert found == {
        "path": "/v1/chat/completions",
        "kind": "chat",
        "messages": 2,
        "parts": 2,
        "media": 1,
        "prompts": 1,
        "answers": 2,
        "stream": True,
        "model": "m",
        "adapter": "a",
        "max_output_tokens": 64,
        "expected_output_tokens": None,
        "priority": -5,
        "convention": "opencode",
    }


def test_a_repr_shows_neither_prompt_nor_conversation() -> None:
    shown = repr(read({"messages": TALK, "session_id": "chat-17", "cache_salt": "pepper"}))
    assert "kind='chat'" in shown
    assert [text for text in ("Answer", "chat-17", "pepper") if text in shown] == []


def test_a_compressed_body_is_not_read() -> None:
    found = describe_body(b"\x1f\x8b", headers={"content-encoding": "gzip", "x-session-id": "s"})
    assert (found.kind, found.prompt_bytes, found.convention) == ("encoded", 0, "opencode")


def test_an_unreadable_body_names_kind_and_byte() -> None:
    with pytest.raises(cachelb.errors.BodyError) as caught:
        describe_body(b'{"messages": [')
    assert (caught.value.kind, caught.value.offset) == ("truncated", 14)


def test_settings_are_those_of_a_router() -> None:
    with pytest.raises(cachelb.errors.BodyError, match="too-large"):
        describe_body(b'{"prompt": "Hello!"}', bodies=cachelb.RequestBodies(max_bytes=4))
    with pytest.raises(ValueError, match="tools_place"):
        describe_body(b"{}", bodies=cachelb.RequestBodies(tools_place="nowhere"))  # type: ignore[arg-type]
    own = cachelb.RequestBodies(session_headers=("x-own",))
    assert describe_body(b"{}", headers={"X-Own": "a"}, bodies=own).convention == "gateway"


def chat(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"messages": [*messages], **fields}


SAID = {"role": "user", "content": "Hello!"}


@pytest.mark.parametrize(
    ("one", "other", "where", "message"),
    [
        pytest.param(chat(*TALK), chat(*TALK, temperature=1), None, None, id="sampling"),
        pytest.param(chat(*TALK, model="a"), chat(*TALK, model="b"), "model", None, id="model"),
        pytest.param(chat(*TALK, lora_path="a"), chat(*TALK), "adapter", None, id="adapter"),
        pytest.param(chat(*TALK, cache_salt="a"), chat(*TALK, cache_salt="b"), "salt", None, id="salt"),
        pytest.param(chat(*TALK), chat(*TALK, chat_template_kwargs={"a": 1}), "options", None, id="options"),
        pytest.param(chat(*TALK, tools=TOOLS), chat(*TALK, tools=OTHERS), "tools", None, id="tools"),
        pytest.param(chat(*TALK, tools=TOOLS), chat(*TALK), "tools", None, id="tools-and-none"),
        pytest.param(chat(*TALK), chat({**TALK[0], "content": "x"}, *TALK[1:]), "message", 1, id="first-message"),
        pytest.param(chat(*TALK), chat(*TALK[:2], SAID), "message", 3, id="third-message"),
        pytest.param(chat(*TALK[:2]), chat(*TALK), "message", 3, id="grown"),
        pytest.param(chat(*TALK), chat(*TALK[:2]), "message", 3, id="shrunk"),
        pytest.param(chat(SAID), chat({**SAID, "content": "Hello!!"}), "message", 1, id="longer-text"),
        pytest.param(chat(SAID), {}, "kind", None, id="no-prompt"),
        pytest.param({}, {}, "kind", None, id="no-prompts"),
    ],
)
def test_the_first_difference_is_named(
    one: dict[str, Any], other: dict[str, Any], where: str | None, message: int | None
) -> None:
    shared = read(one).shared_with(read(other))
    assert (shared.where, shared.message) == (where, message)


@pytest.mark.parametrize(
    ("path", "one", "other", "where", "message"),
    [
        ("/v1/messages", {"system": "a"}, {"system": "b"}, "system", None),
        ("/v1/messages", {"system": SYSTEM}, {}, "system", None),
        ("/v1/messages", {"system": "a"}, {"system": "a", "messages": [SAID, *TALK[2:]]}, "message", 2),
        ("/v1/messages", {}, {"messages": [SAID, {"role": "system", "content": "x"}]}, "message", 2),
        ("/v1/responses", {"instructions": "a", "input": "x"}, {"instructions": "a", "input": "y"}, "message", 1),
        ("/v1/responses", {"input": "x"}, {"input": "x", "previous_response_id": "r"}, "kind", None),
        ("/v1/completions", {"prompt": "x"}, {"prompt": "y"}, "prompt", None),
        ("/v1/completions", {"prompt": [1, 2]}, {"prompt": "y"}, "kind", None),
        ("/generate", {"text": "x", "image_data": "a"}, {"text": "x", "image_data": "b"}, "media", None),
    ],
)
def test_the_first_difference_is_named_at_other_paths(
    path: str, one: dict[str, Any], other: dict[str, Any], where: str, message: int | None
) -> None:
    if path == "/v1/messages":
        one, other = ({"messages": [SAID], **fields} for fields in (one, other))
    shared = read(one, path).shared_with(read(other, path))
    assert (shared.where, shared.message) == (where, message)


def test_known_engines_share_the_system_text_before_other_tools() -> None:
    one, other = (read(chat(*TALK, tools=tools), bodies=AFTER) for tools in (TOOLS, OTHERS))
    shared = one.shared_with(other)
    assert (shared.where, shared.message) == ("tools", None)
    assert shared.tokens >= len(SYSTEM) // 64 * 16
    changed = read(chat({**TALK[0], "content": f"{SYSTEM}!"}, *TALK[1:], tools=TOOLS), bodies=AFTER)
    assert one.shared_with(changed).message == 1


def test_only_whole_blocks_are_shared() -> None:
    one, other = (read({"prompt": [*range(40), last]}, "/v1/completions") for last in (0, 1))
    shared = one.shared_with(other)
    assert (shared.blocks, shared.tokens, shared.share) == (2, 32, 32 / 41)
    assert one.shared_with(other, block_size=8).blocks == 5
    assert one.shared_with(one).where is None
    with pytest.raises(ValueError, match="block_size"):
        one.shared_with(other, block_size=0)


def test_what_is_shared_is_what_a_router_matches() -> None:
    one, other = chat(*TALK[:2], tools=TOOLS), chat(*TALK, tools=TOOLS)
    router = cachelb.Router(["gpu0"], policy="prefix-cache")
    first, second = (json.dumps(fields).encode() for fields in (one, other))
    router.select_worker(body=first, path="/v1/chat/completions", headers={}).on_complete()
    decision = router.select_worker(body=second, path="/v1/chat/completions", headers={})
    assert decision.matched_tokens == read(one).shared_with(read(other)).tokens > 0
    assert decision.prompt_tokens == read(other).tokens
