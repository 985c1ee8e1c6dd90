"""Bodies that arrive in chunks."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelb import RequestBodies, Router
from cachelb.bodies import BodyReader
from cachelb.errors import BodyError

BODY = json.dumps(
    {"messages": [{"role": "user", "content": "Hellö! " * 50}], "model": "m"}, ensure_ascii=False
).encode()


@pytest.mark.hypothesis
@given(cuts=st.lists(st.integers(0, len(BODY)), max_size=20), space=st.text(" \t\r\n", max_size=20))
def test_any_chunks_make_the_body(cuts: list[int], space: str) -> None:
    reader = BodyReader(max_bytes=len(BODY) + len(space))
    whole = space.encode() + BODY
    places = [0, *sorted(cuts), len(whole)]
    for start, end in itertools.pairwise(places):
        reader.feed(whole[start:end])
    assert reader.finish() == whole
    assert reader.finish() == whole


def test_a_router_reads_it_as_the_same_request() -> None:
    router = Router(["gpu0", "gpu1"], seed=1, bodies=RequestBodies(strict=True))
    router.select_worker(body=BODY, path="/v1/chat/completions", headers={}).on_complete()
    reader = BodyReader()
    for byte in BODY:
        reader.feed(bytes([byte]))
    with router.select_worker(body=reader.finish(), path="/v1/chat/completions", headers={}) as decision:
        assert decision.matched_tokens > 0


@pytest.mark.parametrize(
    ("chunks", "kind", "offset"),
    [
        ([b"x" * 101], "too-large", 100),
        ([b"{" + b" " * 99, b" "], "too-large", 100),
        ([b" " * 60, b" " * 60], "too-large", 100),
        ([b"", b" \n", b"\t[1"], "not-object", 3),
        ([b'"text"'], "not-object", 0),
        ([b"-1"], "not-object", 0),
        ([b"null"], "not-object", 0),
        ([b"<html>"], "syntax", 0),
    ],
)
def test_it_refuses_at_the_first_byte_that_shows_it(chunks: list[bytes], kind: str, offset: int) -> None:
    reader = BodyReader(max_bytes=100)
    for chunk in chunks[:-1]:
        reader.feed(chunk)
    with pytest.raises(BodyError) as error:
        reader.feed(chunks[-1])
    assert (error.value.kind, error.value.offset) == (kind, offset)
    assert reader.finish() == b""


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_it_takes_every_encoding_of_json(encoding: str) -> None:
    reader, body = BodyReader(), ' {"prompt": "a"}'.encode(encoding)
    reader.feed(body)
    assert reader.finish() == body


@pytest.mark.parametrize("body", [b"[1]", b'"a"', b"-1", b"true", b"<", b"", b" "])
def test_what_it_refuses_a_router_refuses_too(body: bytes) -> None:
    router = Router(["gpu0"], bodies=RequestBodies(strict=True))
    with pytest.raises(BodyError) as whole:
        router.select_worker(body=body, path="/v1/completions", headers={})
    reader = BodyReader()
    if body.strip():
        with pytest.raises(BodyError) as error:
            reader.feed(body)
        assert error.value.kind == whole.value.kind
    else:
        reader.feed(body)
        assert reader.finish() == body


def test_chunks_may_change_afterwards() -> None:
    reader = BodyReader()
    room = bytearray(b'{"a":')
    reader.feed(room)
    room[:] = b"1}   "
    reader.feed(memoryview(room)[:2])
    assert reader.finish() == b'{"a":1}'


@pytest.mark.parametrize("chunk", ["{}", 5, None, [1]])
def test_chunks_are_bytes(chunk: object) -> None:
    with pytest.raises(TypeError, match="chunk must be bytes, not"):
        BodyReader().feed(chunk)  # type: ignore[arg-type]
