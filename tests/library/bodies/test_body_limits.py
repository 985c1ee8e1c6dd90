"""Valid requests beyond the reader are routed by load and counted; strict refuses only what is no JSON object."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cachelb import RequestBodies, Router
from cachelb.errors import BodyError
from cachelb.policies import Random

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BASE = {"messages": [{"role": "user", "content": "Hell\u00f6, \U0001f600!"}], "n": 1.5, "stop": None, "stream": True}


def strict(**settings: Any) -> Router[str]:
    return Router(["a"], bodies=RequestBodies(strict=True, **settings))


def is_object(body: bytes) -> bool:
    try:
        return isinstance(json.loads(body), dict)
    except (ValueError, RecursionError):
        return False


VALID: dict[str, tuple[str, bytes, str | None]] = {
    "ids": (TEXT, json.dumps({"prompt": [7] * 1_000_001}).encode(), "too-many-ids"),
    "ids of several prompts": (TEXT, json.dumps({"prompt": [[7] * 600_000] * 2}).encode(), "too-many-ids"),
    "inputs": ("/v1/embeddings", json.dumps({"input": ["a"] * 100_001}).encode(), "too-many-parts"),
    "messages": (CHAT, json.dumps({"messages": [{}] * 100_001}).encode(), "too-many-parts"),
    "an id": (TEXT, b'{"prompt": [1, -1]}', "token-id"),
    "a fraction": (TEXT, b'{"prompt": [[1.0]]}', "token-id"),
    "depth": (CHAT, b'{"tools": ' + b"[" * 200 + b"]" * 200 + b"}", "too-deep"),
    "length": (CHAT, json.dumps({"user": "x" * (1 << 20)}).encode(), "too-large"),
    "surrogate": (CHAT, b'{"user": "\\ud800"}', "surrogate"),
    "two high surrogates": (CHAT, b'{"user": "\\ud800\\ud800"}', "surrogate"),
    "raw surrogate": (CHAT, b'{"user": "\xed\xa0\x80"}', "surrogate"),
    "NaN": (CHAT, b'{"temperature": NaN}', "not-finite"),
    "Infinity": (CHAT, b'{"temperature": Infinity}', "not-finite"),
    "-Infinity": (CHAT, b'{"temperature": [-Infinity]}', "not-finite"),
    "BOM": (CHAT, b'\xef\xbb\xbf{"messages": []}', None),
    "keys twice": (CHAT, b'{"messages": 1, "messages": []}', None),
    **{coding: (CHAT, json.dumps(BASE).encode(coding), "encoding") for coding in ("utf-16", "utf-16-be", "utf-32-le")},
}


@pytest.mark.parametrize("name", VALID)
def test_valid_body_is_routed_and_counted(name: str) -> None:
    path, body, kind = VALID[name]
    assert is_object(body)
    for form in (body, bytearray(body)):
        router = strict(max_bytes=1 << 20) if kind == "too-large" else strict()
        router.select_worker(body=form, path=path, headers={}).on_complete()
        assert router.stats().bodies.errors == ({} if kind is None else {kind: 1})


def test_body_behind_a_byte_order_mark_matches() -> None:
    router, body = strict(), json.dumps({"prompt": "word " * 200}).encode()
    router.select_worker(body=body, path=TEXT).on_complete()
    assert router.select_worker(body=b"\xef\xbb\xbf" + body, path=TEXT).matched_tokens > 200


def test_first_limit_is_logged_without_content(caplog: pytest.LogCaptureFixture) -> None:
    router = strict()
    with caplog.at_level(logging.WARNING, "cachelb"):
        for body in (b'{"prompt": [-1], "user": "secret"}', b'{"prompt": [-2]}', b'{"user": NaN}'):
            router.select_worker(body=body, path=TEXT).on_complete()
    (record,) = caplog.records
    assert "(token-id)" in record.getMessage()
    assert "secret" not in caplog.text


# === anything ===

PIECES = st.sampled_from(
    [
        *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\u", b"\\ud800", b"NaN", b"-Infinity", b"-", b"0", b"1e"),
        *(
            b".5",
            b" ",
            b"\n",
            b"\x0b",
            b"tru",
            b"null",
            b"\x00",
            b"\xef\xbb\xbf",
            b"\xff\xfe",
            b"\xed\xa0\x80",
            b"\xc3",
        ),
        b"\xf0\x9f",
    ]
)
BODIES = st.sampled_from(
    [
        json.dumps(BASE).encode(),
        json.dumps(BASE, ensure_ascii=False).encode(),
        json.dumps(BASE).encode("utf-16"),
        b'{"prompt": [[1, 2], "a", NaN], "a": {"a": "\\ud83d\\ude00"}}',
        *(b"[1]", b"NaN", b'"a"', b"{}"),
    ]
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Replace a few stretches of a body by pieces of JSON, or by anything."""
    body = draw(BODIES)
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(body)))
        body = body[:start] + draw(PIECES | st.binary(max_size=3)) + body[start + draw(st.integers(0, 3)) :]
    return body


@example(b'{"a": "\\ud800\\u00zz"}', CHAT)
@example(b"\xef\xbb\xbf\xef\xbb\xbf{}", CHAT)
@example(b'{"a": -NaN}', CHAT)
@given(mutated() | st.binary(max_size=12), st.sampled_from([CHAT, TEXT, "/v1/messages", "/v1/responses", "/score"]))
def test_strict_refuses_only_what_is_no_json_object(body: bytes, path: str) -> None:
    try:
        ROUTER.select_worker(body=body, path=path, headers={}).cancel()
    except BodyError:
        assert not is_object(body)


ROUTER = Router(["a"], policy=Random(seed=1), bodies=RequestBodies(strict=True))


NONE = [b"", b"{", b"[]", b'{"a": 01}', b'{"a": nan}', b"{} {}", b'{"a": "\xff"}', b"\xef\xbb\xbf"]


@pytest.mark.parametrize("body", NONE)
def test_strict_refuses_what_is_none(body: bytes) -> None:
    assert not is_object(body)
    with pytest.raises(BodyError):
        ROUTER.select_worker(body=body, path=CHAT, headers={})
