"""A tracked stream: whatever ends it, its decision ends once and its upstream is closed once."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any

import pytest

import cachelb
from cachelb.answers import read_usage
from cachelb.tracking import TrackedStream


class Upstream:
    """Both kinds of iterator: gives `items`, then raises `error` if there is one; counts how often it was closed."""

    def __init__(self, items: list[Any], error: BaseException | None = None) -> None:
        self.items = list(items)
        self.error = error
        self.closed = 0
        self.waiting = asyncio.Event()
        self.hang = False

    def __iter__(self) -> Upstream:
        return self

    def __next__(self) -> Any:
        if self.items:
            return self.items.pop(0)
        if self.error is not None:
            raise self.error
        raise StopIteration

    def close(self) -> None:
        self.closed += 1

    def __aiter__(self) -> Upstream:
        return self

    async def __anext__(self) -> Any:
        if not self.items and self.hang:
            self.waiting.set()
            await asyncio.Event().wait()
        try:
            return next(self)
        except StopIteration:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        await asyncio.sleep(0)
        self.closed += 1


def routed() -> tuple[cachelb.Router[str], cachelb.Decision[str]]:
    router = cachelb.Router(["a", "b"], seed=1, policy="least-loaded")
    return router, router.select_worker(tokens=range(64))


def ended(router: cachelb.Router[str]) -> dict[str, int]:
    assert sum(router.loads().values()) == router.stats().open_requests == 0
    return {ending: n for ending, n in router.stats().endings.items() if n}


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run on a loop that is empty afterwards, so that what a dropped stream left to be closed was closed."""

    async def whole() -> None:
        await main
        await asyncio.sleep(0)
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})

    asyncio.run(whole())


def decode_blocks(router: cachelb.Router[str], key: str) -> int:
    return next(row.decode_blocks for row in router.stats().workers if row.key == key)


def test_items_become_the_first_token_and_more_tokens_and_the_end_completes() -> None:
    router, decision = routed()
    upstream = Upstream(list(range(33)))

    async def main() -> None:
        stream = decision.track(upstream)
        assert await anext(stream) == 0
        assert (router.stats().workers[0].pending_prefill_tokens, decode_blocks(router, decision.key)) == (0, 4)
        assert [item async for item in stream] == list(range(1, 33))
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        await stream.aclose()

    run(main())
    assert ended(router) == {"completed": 1}
    assert upstream.closed == 1


def test_every_further_item_is_one_token_or_what_the_callable_counts() -> None:
    for tokens_of, blocks in ((None, 5), (len, 8)):
        router, decision = routed()
        stream = decision.track_sync(Upstream(["abcd"] * 17), tokens_of=tokens_of)
        for _ in range(17):
            next(stream)
        assert decode_blocks(router, decision.key) == blocks
        stream.close()


def test_usage_of_the_last_items_reaches_the_record() -> None:
    router, decision = routed()
    upstream = Upstream([b"data: {}\n\n"] * 9 + [b'data: {"usage": {"completion_tokens": 9}}\n\n', b"data: [DONE]\n\n"])
    assert len(list(decision.track_sync(upstream, usage_of=lambda items: read_usage(b"".join(items))))) == 11
    assert ended(router) == {"completed": 1}
    assert router.records.recent()[-1].output_tokens == 9


def test_an_upstream_exception_fails_the_request_and_passes_through() -> None:
    error = ConnectionResetError("reset")
    router, decision = routed()
    upstream = Upstream([1], error)

    async def main() -> None:
        with pytest.raises(ConnectionResetError) as raised:
            async for _ in decision.track(upstream):
                pass
        assert raised.value is error

    run(main())
    assert ended(router) == {"failed": 1}
    assert upstream.closed == 1

    router, decision = routed()
    upstream = Upstream([1], error)
    with pytest.raises(ConnectionResetError):
        list(decision.track_sync(upstream))
    assert (ended(router), upstream.closed) == ({"failed": 1}, 1)


def test_a_cancelled_consumer_cancels_the_request() -> None:
    router, decision = routed()
    upstream = Upstream([1])
    upstream.hang = True

    async def consume() -> None:
        async for _ in decision.track(upstream):
            pass

    async def main() -> None:
        task = asyncio.create_task(consume())
        await upstream.waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())
    assert (ended(router), upstream.closed) == ({"cancelled": 1}, 1)


@pytest.mark.parametrize("read", [0, 1], ids=["never started", "started"])
@pytest.mark.parametrize("how", ["close", "drop", "with"])
@pytest.mark.parametrize("asynchronous", [True, False], ids=["stream", "iterator"])
def test_giving_up_cancels_the_request_and_closes_the_upstream(asynchronous: bool, read: int, how: str) -> None:
    router, decision = routed()
    upstream = Upstream([1, 2, 3])

    async def main() -> None:
        stream: Any = decision.track(upstream) if asynchronous else decision.track_sync(upstream)
        for _ in range(read):
            await anext(stream) if asynchronous else next(stream)
        if how == "close":
            for _ in range(2):
                await stream.aclose() if asynchronous else stream.close()
        elif how == "with" and asynchronous:
            async with stream:
                pass
        elif how == "with":
            with stream:
                pass
        del stream
        gc.collect()
        assert router.loads() == {"a": 0, "b": 0}

    run(main())
    assert (ended(router), upstream.closed) == ({"cancelled": 1}, 1)


def test_a_stream_dropped_in_another_thread_is_closed_on_its_loop() -> None:
    router, decision = routed()
    upstream = Upstream([1, 2])

    async def main() -> None:
        streams = [decision.track(upstream)]
        await anext(streams[0])
        await asyncio.to_thread(streams.clear)

    run(main())
    assert (ended(router), upstream.closed) == ({"cancelled": 1}, 1)


def test_a_stream_that_outlives_its_loop_says_that_it_cannot_close(caplog: pytest.LogCaptureFixture) -> None:
    router, decision = routed()
    streams: list[TrackedStream[int]] = []

    async def main() -> None:
        streams.append(decision.track(Upstream([1, 2])))

    run(main())
    streams.clear()
    assert ended(router) == {"cancelled": 1}
    assert "left to the collector" in caplog.text


def test_what_is_iterated_over_and_its_iterator_are_each_closed_once() -> None:
    closed: list[str] = []

    class Response:
        async def __aiter__(self) -> Any:
            try:
                yield 1
                yield 2
            finally:
                closed.append("iterator")

        async def aclose(self) -> None:
            closed.append("response")

    router, decision = routed()

    async def main() -> None:
        stream = decision.track(Response())
        await anext(stream)
        await stream.aclose()

    run(main())
    assert (ended(router), closed) == ({"cancelled": 1}, ["iterator", "response"])


def test_a_faulty_callable_is_counted_and_logged_once_and_ends_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    router, decision = routed()
    upstream = Upstream([1, 2, 3])
    assert list(decision.track_sync(upstream, tokens_of=len)) == [1, 2, 3]
    assert (ended(router), upstream.closed) == ({"completed": 1}, 1)
    assert (router.stats().unread_usage, len(caplog.records)) == (3, 1)

    router, decision = routed()
    upstream = Upstream([1, 2])
    list(decision.track_sync(upstream, usage_of=lambda items: {"output_tokens": len(items) // 0}))
    assert (ended(router), upstream.closed) == ({"completed": 1}, 1)
    assert router.stats().unread_usage == 1


def test_what_cannot_be_iterated_is_refused_and_leaves_the_decision_alone() -> None:
    router, decision = routed()
    with pytest.raises(TypeError):
        decision.track([1])  # type: ignore[arg-type]  # the point
    with pytest.raises(TypeError):
        decision.track_sync(1)  # type: ignore[arg-type]  # the point
    gc.collect()
    assert decision.is_open
    decision.cancel()
    assert ended(router) == {"cancelled": 1}


def test_a_tracked_pair_releases_prefill_with_the_first_item() -> None:
    router: cachelb.Router[str] = cachelb.Router(seed=1, pairs=cachelb.Pairs(uncached_token_threshold=0))
    router.add_worker("p", role="prefill")
    router.add_worker("d", role="decode")
    pair = router.select_pair(tokens=range(64))
    stream = pair.track_sync(Upstream([1, 2]))
    assert router.loads() == {"p": 1, "d": 1}
    next(stream)
    assert router.loads() == {"p": 0, "d": 1}
    assert list(stream) == [2]
    assert ended(router) == {"completed": 2}
