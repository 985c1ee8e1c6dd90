"""No usage that an engine reports ends an answer, and the kept part of it is bounded."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import cachelb
from cachelb.answers import TAIL_BYTES, read_usage

NAMES = ("cached_tokens", "prompt_tokens", "completion_tokens", "output_tokens")
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 2**31, 2**40, 2**40 + 1, 2**63, 2**64, 10**30, 10**400]),
    st.floats(),
    st.text(max_size=8),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)
USAGE = st.dictionaries(st.sampled_from([*NAMES, "prompt_tokens_details"]), VALUES, max_size=5)
FRAMING = st.sampled_from(
    [b"data: %s\n\n", b"data:%s\r\n\r\n", b"%s", b"\xff\xfe%s\x00", b"event: x\ndata: %s", b"%s%s"]
)


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """Draw the bytes of an answer with a usage in it, whatever the engine made of that."""
    parts = []
    for usage in draw(st.lists(USAGE, max_size=3)):
        text = json.dumps({"usage": usage}, allow_nan=True, ensure_ascii=draw(st.booleans()))
        frame = draw(FRAMING)
        parts.append(frame.replace(b"%s", text.encode("utf-8", "surrogatepass")))
    return draw(st.binary(max_size=20)).join([b"", *parts, b"data: [DONE]\n\n"])


def cut(answer: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(answer), *(place % (len(answer) + 1) for place in places)})
    return [answer[begin:end] for begin, end in pairwise(edges)]


def fits(count: object) -> bool:
    return isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= 2**40


def counted(router: cachelb.Router[str]) -> int:
    stats = router.stats()
    assert stats.endings["completed"] == 1
    assert stats.open_requests == 0
    router.validate()
    (record,) = router.records.recent()
    known = (record.cached_tokens, record.engine_prompt_tokens, record.output_tokens)
    assert all(count is None or fits(count) for count in known)
    return stats.unread_usage


@given(answers(), st.lists(st.integers(min_value=0), max_size=6))
def test_no_answer_of_an_engine_raises_out_of_track(answer: bytes, places: list[int]) -> None:
    chunks = cut(answer, places)

    def usage_of(items: Sequence[bytes]) -> Any:
        return read_usage(b"".join(items))

    async def upstream() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    async def consume(decision: cachelb.Decision[str]) -> list[bytes]:
        return [chunk async for chunk in decision.track(upstream(), usage_of=usage_of)]

    for consumed in (
        lambda decision: list(decision.track_sync(chunks, usage_of=usage_of)),
        lambda decision: asyncio.run(consume(decision)),
    ):
        router = cachelb.Router(["a"], seed=1)
        assert consumed(router.select_worker(tokens=range(64))) == chunks
        counted(router)
    found = read_usage(answer)
    assert all(type(count) is int for count in found.values())
    router = cachelb.Router(["a"], seed=1)
    router.select_worker(tokens=range(64)).on_complete(**found)
    assert counted(router) == sum(not fits(count) for count in found.values())


@given(VALUES.filter(lambda value: not isinstance(value, bool)))
def test_an_item_whose_tokens_cannot_be_counted_is_one(count: Any) -> None:
    router = cachelb.Router(["a"], seed=1)
    decision = router.select_worker(tokens=range(64))
    assert list(decision.track_sync(["a", "b"], tokens_of=lambda _: count)) == ["a", "b"]
    assert counted(router) == (0 if fits(count) else 2)


def test_what_reads_the_usage_may_fail_without_ending_the_answer() -> None:
    for pair in (False, True):
        router = cachelb.Router(["a"], seed=1)
        decision: Any = router.select_pair(tokens=range(64)) if pair else router.select_worker(tokens=range(64))
        assert list(decision.track_sync([b"x", b"\xff"], usage_of=lambda items: json.loads(items[-1]))) == [
            b"x",
            b"\xff",
        ]
        assert counted(router) == 1


def test_no_more_of_a_stream_without_a_newline_is_kept_than_a_bound() -> None:
    kept: list[int] = []

    def usage_of(items: Sequence[bytes]) -> Any:
        kept.append(sum(map(sys.getsizeof, items)))
        return read_usage(b"".join(items))

    router = cachelb.Router(["a"], seed=1)
    usage = b'"usage": {"completion_tokens": 9}}'
    chunks = (b"x" * (1 << 22) + usage * (at == 19) for at in range(20))
    assert sum(map(len, router.select_worker(by_load=True).track_sync(chunks, usage_of=usage_of))) == (20 << 22) + len(
        usage
    )
    assert kept[0] < 1 << 20
    assert router.records.recent()[0].output_tokens == 9
    assert TAIL_BYTES < 1 << 16
