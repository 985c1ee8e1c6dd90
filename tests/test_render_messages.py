"""Rendering of chat messages: what differs differs, what begins alike begins alike, and nothing can be forged."""

from __future__ import annotations

import base64
import json
import os.path
import random
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelb.text import render_messages

# The characters of marks, of JSON, and others.
TEXT = st.text(alphabet='amtcpkox\x1f\x1e{}[]",\\é\u0301字😀', max_size=5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
PART = (
    TEXT
    | st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "image_url", ["text"]]), "text": TEXT}, optional={"k": JSON}
    )
    | st.fixed_dictionaries({"type": st.just("image_url"), "image_url": st.fixed_dictionaries({"url": TEXT})})
    | st.dictionaries(TEXT, JSON, max_size=1)
    | st.lists(JSON, max_size=1)
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "m\x1f"])},
    optional={
        "name": TEXT | st.integers(0, 1),
        "tool_call_id": TEXT,
        "reasoning": TEXT,
        "reasoning_content": TEXT | st.none(),
        "content": TEXT | st.none() | st.lists(PART, max_size=3) | st.dictionaries(TEXT, JSON, max_size=1),
        "refusal": TEXT,
        "tool_calls": st.lists(st.dictionaries(TEXT, JSON, max_size=2), max_size=2),
        "a": JSON,
    },
)
MESSAGES = st.lists(MESSAGE, max_size=4)
TOOLS = st.none() | st.lists(st.dictionaries(TEXT, JSON, max_size=2), max_size=2)


def canonical_part(part: Any) -> Any:
    if isinstance(part, str):
        return part, {}
    if not isinstance(part, dict):
        return part
    fields = {key: value for key, value in part.items() if value is not None}
    if fields.get("type") == "text":
        return fields.pop("text"), {key: value for key, value in fields.items() if key != "type"}
    return fields


def canonical(message: dict[str, Any]) -> dict[str, Any]:
    """What a message means: what two that render alike must have in common."""
    fields = {key: value for key, value in message.items() if value is not None}
    if isinstance(fields.get("content"), str | list):
        content = fields["content"]
        parts = [content] if isinstance(content, str) else content or [""]
        fields["content"] = [canonical_part(part) for part in parts]
    if fields.get("tool_calls") == []:
        del fields["tool_calls"]
    return fields


FIELDS = {"n": "name", "i": "tool_call_id", "h": "reasoning", "r": "reasoning_content", "f": "refusal"}


def split(text: str) -> list[tuple[str, str]]:
    """Cut a rendering at its marks."""
    fields: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        if text[at] == "\x1f" and text[at + 1] != "\x1f":
            fields.append((text[at + 1], ""))
            at += 2
            continue
        at += text[at] == "\x1f"
        fields[-1] = (fields[-1][0], fields[-1][1] + text[at])
        at += 1
    return fields


def parse(text: str) -> tuple[list[Any], list[dict[str, Any]]]:
    """Read a rendering back."""
    tools: list[Any] = []
    messages: list[dict[str, Any]] = []
    for mark, value in split(text):
        if mark == "t":
            tools.append(json.loads(value))
        elif mark == "m":
            messages.append({"role": value})
        elif mark in FIELDS:
            messages[-1][FIELDS[mark]] = value
        elif mark == "c":
            messages[-1]["content"] = [(value, {})]
        elif mark == "p":
            messages[-1]["content"].append((value, {}))
        elif mark == "k":
            messages[-1]["content"][-1][1].update(json.loads(value))
        elif mark == "o":
            assert messages[-1]["content"][-1] == ("", {})
            messages[-1]["content"][-1] = json.loads(value)
        elif mark == "l":
            messages[-1]["tool_calls"] = json.loads(value)
        else:
            assert mark == "x"
            messages[-1].update(json.loads(value))
    return tools, messages


@given(MESSAGES, TOOLS)
def test_everything_can_be_read_back_so_nothing_that_differs_renders_alike(
    messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None
) -> None:
    assert parse(render_messages(messages, tools)) == (tools or [], [canonical(message) for message in messages])


@given(MESSAGES, MESSAGES, TOOLS)
def test_shared_messages_are_a_shared_prefix(
    shared: list[dict[str, Any]], more: list[dict[str, Any]], tools: list[dict[str, Any]] | None
) -> None:
    prefix = render_messages(shared, tools)
    whole = render_messages(shared + more, tools)
    assert whole.startswith(prefix)
    assert whole[len(prefix) :] == render_messages(more)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda text: {"role": "system", "content": text},
        lambda text: {"role": "system", "content": [{"type": "text", "text": text}]},
        lambda text: {"role": "assistant", "reasoning_content": text, "content": "c"},
        lambda text: {"role": "assistant", "tool_calls": [{"function": {"arguments": text, "name": "f"}}]},
    ],
    ids=["content", "part", "reasoning", "arguments"],
)
def test_texts_that_begin_alike_share_the_beginning(wrap: Any) -> None:
    shared = "You are a helpful assistant. " * 200
    renderings = [render_messages([wrap(shared + end)]) for end in ("Be brief.", "Take your time, and explain.")]
    assert len(os.path.commonprefix(renderings)) > len(shared)  # noqa: RUF071 - character by character is the point


def shuffled(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict):
        items = [(key, shuffled(item, rng)) for key, item in value.items()]
        rng.shuffle(items)
        return dict(items)
    return [shuffled(item, rng) for item in value] if isinstance(value, list) else value


@given(MESSAGES, TOOLS, st.integers(0, 100))
def test_the_order_of_keys_does_not_matter(messages: list[dict[str, Any]], tools: Any, seed: int) -> None:
    rng = random.Random(seed)
    assert render_messages(shuffled(messages, rng), shuffled(tools, rng)) == render_messages(messages, tools)


def test_any_mapping_will_do() -> None:
    nested = {"role": "user", "content": [MappingProxyType({"type": "text", "text": "a"})], "x": {"y": {"z": 1}}}
    frozen = MappingProxyType(nested | {"x": MappingProxyType({"y": MappingProxyType({"z": 1})})})
    tool = {"function": {"name": "f"}}
    frozen_tool = MappingProxyType({"function": MappingProxyType({"name": "f"})})
    assert render_messages((frozen,), (frozen_tool,)) == render_messages([nested], [tool])


def test_tools_come_first() -> None:
    tools = [{"type": "function", "function": {"name": "search"}}]
    text = render_messages([{"role": "user", "content": "hello"}], tools)
    assert text.index("search") < text.index("hello")
    assert text.startswith(render_messages([], tools))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"content": "a"}, {"content": [{"type": "text", "text": "a"}]}),
        ({"content": "a"}, {"content": ["a"]}),
        ({"content": ""}, {"content": []}),
        ({"content": "a"}, {"content": [{"type": "input_text", "text": "a", "annotations": None}]}),
        ({"content": "a"}, {"content": "a", "name": None, "refusal": None, "audio": None, "tool_calls": None}),
        ({"content": "a"}, {"content": "a", "tool_calls": []}),
        ({"content": "a"}, {"content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]}),
        ({"content": "a"}, {"content": "a", "cache_control": {"type": "ephemeral"}}),
    ],
    ids=["part", "list-of-str", "empty", "responses-api", "nones", "no-calls", "cache-control", "of-a-message"],
)
def test_forms_that_mean_the_same_render_alike(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert render_messages([{"role": "user", **one}]) == render_messages([{"role": "user", **other}])
    assert render_messages([{"role": "user"}], []) == render_messages([{"role": "user"}])


def test_text_is_neither_escaped_nor_normalised() -> None:
    composed, decomposed = ("caf\u00e9 字 😀", "cafe\u0301 字 😀")
    for text in (composed, decomposed):
        for message in ({"content": text}, {"tool_calls": [{"name": text}]}, {"other": text}):
            assert text in render_messages([{"role": "user", **message}])
    assert render_messages([], [{"name": composed}]) != render_messages([], [{"name": decomposed}])


def test_numbers_and_literals_render_in_one_stable_form() -> None:
    tool = {"a": 1, "b": 1.0, "c": 0.1, "d": None, "e": True, "f": 10**20, "g": 1e-7}
    expected = '\x1ft{"a":1,"b":1.0,"c":0.1,"d":null,"e":true,"f":100000000000000000000,"g":1e-07}'
    assert render_messages([], [tool]) == expected


RAW = [base64.b64encode(bytes([fill]) * 600).decode() for fill in (1, 2)]


@pytest.mark.parametrize(
    "part",
    [
        lambda raw: {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{raw}"}},
        lambda raw: {"type": "image_url", "image_url": {"url": f"DATA:image/png;base64,{raw}"}},
        lambda raw: {"type": "input_image", "image_url": f"data:image/png;base64,{raw}"},
        lambda raw: {"type": "input_audio", "input_audio": {"data": raw, "format": "wav"}},
        lambda raw: {"type": "file", "file": {"file_data": raw, "filename": "a.pdf"}},
        lambda raw: {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": raw}},
        lambda raw: {"type": "video", "video": {"data": [raw, raw]}},
    ],
    ids=["image", "upper-case", "responses-api", "audio", "file", "source", "frames"],
)
@pytest.mark.parametrize("size", [8, 800])
def test_bytes_are_represented_by_a_digest(part: Any, size: int) -> None:
    one, other = (part(raw[:size]) for raw in RAW)
    texts = [render_messages([{"role": "user", "content": [item]}]) for item in (one, other, one)]
    assert texts[0] == texts[2] != texts[1]
    assert RAW[0][:size] not in texts[0]
    assert len(texts[0]) < 250


def test_long_words_outside_of_text_are_taken_for_bytes() -> None:
    message: dict[str, Any] = {"role": "user", "content": "look", "images": [RAW[0]]}
    text = render_messages([message])
    assert RAW[0][:64] not in text
    assert text != render_messages([message | {"images": [RAW[1]]}])
    for thought in ("I think so. " * 100, "我思故我在" * 200):
        part = {"type": "thinking", "thinking": thought}
        assert thought in render_messages([{"role": "assistant", "content": [part]}])


@pytest.mark.parametrize("url", ["https://host/a.png", "HTTPS://host/" + "a" * 600], ids=["short", "long"])
def test_remote_media_are_represented_by_their_url(url: str) -> None:
    part = {"type": "image_url", "image_url": {"url": url}}
    assert url in render_messages([{"role": "user", "content": [part]}])


def test_a_url_that_spells_a_digest_does_not_pass_for_the_image() -> None:
    def render(url: str) -> str:
        return render_messages([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}])

    honest = render(f"data:image/png;base64,{RAW[0]}")
    digest = honest[honest.index("data:") :].partition('"')[0]
    assert render(digest) != honest


def test_text_that_looks_like_bytes_stays() -> None:
    word = f"data:image/png;base64,{RAW[0]}"
    for message in ({"content": word}, {"content": [{"type": "text", "text": word}]}, {"reasoning": word}):
        assert word in render_messages([{"role": "user", **message}])


def test_half_of_a_surrogate_pair_renders_like_any_character() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:\ud83d"}}
    texts = [render_messages([{"role": "user", "content": ["a\ud83d", *more]}]) for more in ([], [image])]
    assert texts[0].endswith("a\ud83d")
    assert texts[1].startswith(texts[0])


def nested(depth: int) -> Any:
    value: Any = "secret"
    for _ in range(depth):
        value = [value]
    return value


LOOP: dict[str, Any] = {"secret": "secret"}
LOOP["self"] = LOOP
USER = {"role": "user", "content": "secret"}


@pytest.mark.parametrize(
    ("messages", "tools", "kind", "text"),
    [
        (None, None, TypeError, "messages must be a list of mappings, got NoneType"),
        ("secret", None, TypeError, "messages must be a list of mappings, got str"),
        (USER, None, TypeError, "messages must be a list of mappings, got dict"),
        ([USER, "secret"], None, TypeError, r"messages\[1\] must be a mapping, got str"),
        ([USER, {"content": "secret"}], None, ValueError, r"messages\[1\] has no role"),
        ([{"role": None}], None, ValueError, r"messages\[0\] has no role"),
        ([{"role": ["secret"]}], None, TypeError, r"messages\[0\] must have a str as role, got list"),
        (
            [USER, {"role": "user", "x": {"secret"}}],
            None,
            TypeError,
            r"messages\[1\] holds a value that JSON .* is set",
        ),
        ([{"role": "user", "content": b"secret"}], None, TypeError, r"messages\[0\] holds .* it is bytes"),
        ([{"role": "user", "tool_calls": [{"f": b"secret"}]}], None, TypeError, r"messages\[0\] holds .* it is bytes"),
        ([{"role": "user", "content": [object()]}], None, TypeError, r"messages\[0\] holds .* it is object"),
        ([USER | {"x": {("secret",): 1}}], None, TypeError, r"messages\[0\] holds .* keys must be str"),
        ([USER | {"x": {"secret": 1, 2: 3}}], None, TypeError, r"messages\[0\] holds .* 'int' and 'str'"),
        ([USER | {"x": LOOP}], None, ValueError, r"messages\[0\] contains itself or is nested too deeply"),
        ([USER | {"x": nested(100_000)}], None, ValueError, r"messages\[0\] contains itself or is nested too deeply"),
        ([USER | {"tool_calls": nested(100_000)}], None, ValueError, r"messages\[0\] contains itself or is nested"),
        ([USER], "secret", TypeError, "tools must be a list of mappings, got str"),
        ([USER], [{}, "secret"], TypeError, r"tools\[1\] must be a mapping, got str"),
        ([USER], [LOOP], ValueError, r"tools\[0\] contains itself or is nested too deeply"),
        ([USER], [{"x": {"secret"}}], TypeError, r"tools\[0\] holds a value that JSON does not know: it is set"),
    ],
    ids=range(20),
)
def test_bad_input_is_refused_by_its_index_without_showing_content(
    messages: Any, tools: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text) as caught:
        render_messages(messages, tools)
    assert "secret" not in str(caught.value)
