"""Polled events of TensorRT-LLM: what a worker hands out reaches the router's index, from a function or over HTTP."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from tests.gateways import serve_asgi
from tests.waiting import wait_until

from cachelb import Router
from cachelb.events import PollSource

KEY = "http://gpu0:8000"
BLOCK = 4
# By the formula of TensorRT-LLM's BlockKeyHasher: tokens 1 to 4, and 5 to 8 behind them.
ROOT, NEXT = 924206229973855, 2728178455351807326


def event(number: int, data: dict[str, Any], *, window: int = 4096) -> dict[str, Any]:
    return {"event_id": number, "data": data, "window_size": window, "hash_algo": "v1_block_key"}


def block(name: int, ids: list[int]) -> dict[str, Any]:
    tokens = [{"token_id": each, "token_extra_id": 0} for each in ids]
    return {"block_hash": name, "tokens": tokens, "cache_level": 0}


def stored(number: int) -> dict[str, Any]:
    blocks = [block(ROOT, [1, 2, 3, 4]), block(NEXT, [5, 6, 7, 8])]
    return event(number, {"type": "stored", "parent_hash": None, "blocks": blocks})


def removed(number: int, *, window: int = 4096) -> dict[str, Any]:
    return event(number, {"type": "removed", "block_hashes": [NEXT]}, window=window)


def moved(number: int) -> dict[str, Any]:
    level = {"old_value": 0, "new_value": 1}
    return event(number, {"type": "updated", "block_hash": NEXT, "cache_level": level, "priority": None})


class Engine:
    """Hands out events, each once."""

    def __init__(self) -> None:
        self.pending: list[Any] = []
        self.lock = threading.Lock()

    def put(self, *events: Any) -> None:
        with self.lock:
            self.pending.extend(events)

    def __call__(self, key: str) -> list[Any]:
        assert key == KEY
        with self.lock:
            events, self.pending = self.pending, []
        return events


@contextmanager
def serving(engine: Engine) -> Iterator[str]:
    """A server with the page of `trtllm-serve`; the first request fails."""
    statuses = [503]

    async def page(_: Request) -> Response:
        return Response(status_code=statuses.pop()) if statuses else JSONResponse(engine(KEY))

    with serve_asgi(Starlette(routes=[Route("/kv_cache_events", page, methods=["POST"])])) as url:
        yield url


def held(router: Router[Any], key: str | None = None, medium: str = "gpu") -> int:
    """Return the blocks of a worker, or of all, that the router knows of."""
    ranks = router.stats().workers
    return sum(rank.index_blocks.get(medium, 0) for rank in ranks if key in {None, rank.key})


def follow(router: Router[Any], engine: Engine) -> None:
    """Stores, a removal and a restart, as the router sees them."""
    engine.put(event(0, {"type": "created", "num_blocks_per_cache_level": [9]}), stored(1))
    wait_until(lambda: held(router) == 2)
    assert router.explain(tokens=list(range(1, 12))).candidates[0].overlap_blocks == 2
    engine.put(moved(2))
    wait_until(lambda: (held(router), held(router, medium="cpu")) == (1, 1))
    engine.put(removed(3))
    wait_until(lambda: held(router, medium="cpu") == 0)
    assert held(router) == 1
    engine.put(event(0, {"type": "created", "num_blocks_per_cache_level": [9]}))
    wait_until(lambda: held(router) == 0)


def router(key: str = KEY) -> Router[Any]:
    return Router([key], policy="kv-aware", block_size=BLOCK)


@pytest.mark.parametrize("is_async", [False, True], ids=["as it is", "as JSON text"])
def test_events_of_a_function_reach_the_index(is_async: bool) -> None:
    engine = Engine()

    async def fetch(key: str) -> bytes:
        return json.dumps(engine(key)).encode()

    with router() as gateway:
        gateway.attach(PollSource(fetch if is_async else engine, interval_s=0.01))
        follow(gateway, engine)


def test_events_of_a_server_reach_the_index_after_a_failure() -> None:
    engine = Engine()
    with serving(engine) as key, router(key) as gateway:
        source = PollSource(interval_s=0.01)
        gateway.attach(source)
        follow(gateway, engine)
        stats = source.stats().workers[key]
        assert (stats.failures, stats.last_error, stats.refused) == (1, "HTTP 503", 0)


def nested(depth: int) -> list[Any]:
    inside: list[Any] = []
    for _ in range(depth):
        inside = [inside]
    return inside


@pytest.mark.parametrize("answer", [{"event_id": 0}, [{1, 2}], b"{}", "[", 7, nested(50), nested(100_000)])
def test_an_answer_without_events_is_counted_and_polling_goes_on(answer: Any) -> None:
    answers = [answer]
    engine = Engine()

    def fetch(key: str) -> Any:
        return answers.pop() if answers else engine(key)

    with router() as gateway:
        source = PollSource(fetch, interval_s=0.01)
        gateway.attach(source)
        wait_until(lambda: KEY in source.stats().workers and source.stats().workers[KEY].malformed == 1)
        engine.put(stored(0))
        wait_until(lambda: held(gateway) == 2)


@pytest.mark.parametrize(
    ("error", "is_async"),
    [
        (ValueError, False),
        (SystemExit, False),
        (StopIteration, False),
        (asyncio.CancelledError, False),
        (ValueError, True),
        (asyncio.CancelledError, True),
    ],
)
def test_a_function_that_raises_is_counted_and_called_again(error: type[BaseException], is_async: bool) -> None:
    errors = [error("secret")]
    engine = Engine()

    def fetch(key: str) -> Any:
        if errors:
            raise errors.pop()
        return engine(key)

    async def fetch_async(key: str) -> Any:
        return fetch(key)

    with router() as gateway:
        source = PollSource(fetch_async if is_async else fetch, interval_s=0.01)
        gateway.attach(source)
        engine.put(stored(0))
        wait_until(lambda: held(gateway) == 2)
        stats = source.stats().workers[KEY]
        assert (stats.failures, stats.malformed) == (1, 0)
        assert stats.last_error in (error.__name__, "RuntimeError")


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("cachelb-kv-")]


def test_a_function_that_hangs_delays_no_other_worker_and_its_late_answer_counts() -> None:
    slow, engine, going_on = "http://gpu1:8000", Engine(), threading.Event()

    def fetch(key: str) -> Any:
        if key == slow:
            going_on.wait(30)
            return [] if held(gateway, slow) else [stored(0)]
        return engine(key)

    with Router([KEY, slow], policy="kv-aware", block_size=BLOCK) as gateway:
        source = PollSource(fetch, interval_s=0.01, timeout_s=0.02)
        gateway.attach(source)
        wait_until(lambda: slow in source.stats().workers and source.stats().workers[slow].failures > 2)
        engine.put(stored(0))
        wait_until(lambda: held(gateway, KEY) == 2)
        assert threads().count("cachelb-kv-fetch") == 2
        going_on.set()
        wait_until(lambda: held(gateway, slow) == 2)
        assert source.stats().workers[slow].last_error == "TimeoutError"
    assert not threads()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_function_that_hangs_does_not_hold_up_stop(is_async: bool) -> None:
    going_on = threading.Event()

    def fetch(key: str) -> None:
        going_on.wait(30)

    async def fetch_async(key: str) -> None:
        await asyncio.sleep(30)

    with router() as gateway:
        source = PollSource(fetch_async if is_async else fetch)
        gateway.attach(source)
        wait_until(lambda: source.stats().polls > 0)
    assert "cachelb-kv-polls" not in threads()
    going_on.set()
    wait_until(lambda: not threads())


def test_ranks_of_a_worker_have_numbers_and_blocks_of_their_own() -> None:
    engine = Engine()
    with router() as gateway:
        gateway.remove_worker(KEY)
        gateway.add_worker(KEY, dp_size=2)
        source = PollSource(engine, interval_s=0.01)
        gateway.attach(source)
        engine.put({**stored(0), "attention_dp_rank": 1}, {**stored(0), "attention_dp_rank": 2})
        wait_until(lambda: held(gateway) == 2)
        engine.put({**removed(1), "attention_dp_rank": 0}, {**removed(1), "attention_dp_rank": 1})
        wait_until(lambda: held(gateway) == 1)
        assert source.stats().workers[KEY].foreign == 1


def test_a_prompt_resumes_where_the_sliding_window_is_kept() -> None:
    engine = Engine()
    last = {"type": "stored", "parent_hash": ROOT, "blocks": [block(NEXT, [5, 6, 7, 8])]}
    with router() as gateway:
        gateway.attach(PollSource(engine, interval_s=0.01))

        def seen() -> tuple[int, int]:
            """Return leading blocks that a prompt resumes behind, and those of full attention."""
            candidate = gateway.explain(tokens=list(range(1, 12))).candidates[0]
            return candidate.overlap_blocks, candidate.held_blocks

        engine.put(stored(0), event(1, last, window=BLOCK))
        wait_until(lambda: seen() == (2, 2))
        engine.put(removed(2, window=BLOCK))
        wait_until(lambda: seen() == (0, 2))


def test_a_worker_that_is_registered_again_is_polled_again() -> None:
    engine = Engine()
    with router() as gateway:
        source = PollSource(engine, interval_s=0.01)
        gateway.attach(source)
        engine.put(stored(0))
        wait_until(lambda: held(gateway) == 2)
        gateway.remove_worker(KEY)
        gateway.add_worker(KEY)
        engine.put(stored(1))
        wait_until(lambda: held(gateway) == 2)


def test_a_removed_worker_is_not_polled_and_stop_waits_for_the_thread() -> None:
    engine = Engine()
    with router() as gateway:
        source = PollSource(engine, interval_s=0.01)
        gateway.attach(source)
        wait_until(lambda: source.stats().polls > 2)
        gateway.remove_worker(KEY)
        wait_until(lambda: not source.stats().workers)
        assert source.stats().polls > 2
    assert not threads()


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"fetch": 7}, TypeError, "fetch must be a function"),
        ({"fetch": len, "url": str}, ValueError, "url is of no use beside fetch"),
        ({"fetch": len, "headers": {}}, ValueError, "headers is of no use beside fetch"),
        ({"interval_s": 0}, ValueError, "interval_s must be above 0"),
        ({"timeout_s": "1"}, TypeError, "timeout_s must be a number"),
        ({"block_size": 0}, ValueError, "block_size must be at least 1"),
        ({"block_size": True}, TypeError, "block_size must be int"),
        ({"verify": 1}, TypeError, "verify must be True or False"),
        ({"url": "http://x"}, TypeError, "url must be a function"),
        ({"headers": {"a": "b\n"}}, ValueError, "line break"),
        ({"tls": 1}, TypeError, "tls must be"),
    ],
)
def test_a_wrong_argument_is_refused(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        PollSource(**arguments)
