"""Engines that sleep: they are passed over, and what they held is dropped when their caches go."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.library.router.admitting import acquire, come, make, prompt, settle
from tests.models.ext_proc_client import in_loop, serve
from tests.models.loads import indexed_blocks
from tests.models.metrics_pages import gauge, vllm_page
from tests.models.metrics_server import FakeEngine, eventually

from cachelb import Health, Router
from cachelb.sources import MetricsSource
from cachelb_fakes.events import encode_batch, removed, stored

PROMPT = range(96)


def states(router: Router[str]) -> dict[str, str]:
    return {row.key if row.dp_rank is None else f"{row.key}#{row.dp_rank}": row.state for row in router.stats().workers}


def picks(router: Router[str], count: int = 12) -> set[str]:
    """Return the workers that serve new prompts, which stay open."""
    made = [router.select_worker(tokens=prompt(n)) for n in range(count)]
    names = {f"{each.worker}#{each.dp_rank}" if each.dp_rank is not None else each.worker for each in made}
    for each in made:
        each.cancel()
    return names


def held(router: Router[str]) -> dict[str, int]:
    """Return the tokens matched on each worker."""
    matched = {}
    for worker in router.workers():
        decision = router.select_worker(tokens=PROMPT, among=[worker])
        matched[worker] = decision.matched_tokens
        decision.cancel()
    return matched


def test_a_worker_that_sleeps_is_passed_over_while_others_are_there() -> None:
    router = Router(["a", "b", "c"], seed=1, policy="least-loaded", health=Health(breaker_failures=1))
    assert picks(router) == {"a", "b", "c"}
    router.load_sink.update_load("a", running=0, waiting=0, sleep="asleep")
    router.load_sink.update_load("b", running=0, waiting=0, sleep="paused")
    assert (picks(router), states(router)) == ({"c"}, {"a": "asleep", "b": "asleep", "c": "ready"})
    router.select_worker(tokens=PROMPT).on_error(500)
    assert (picks(router), states(router)["c"]) == ({"c"}, "failing"), "it may serve, one that sleeps does not"
    router.remove_worker("c")
    assert picks(router) == {"a", "b"}, "there is no other"
    router.load_sink.update_load("b", running=0, waiting=0)
    assert states(router)["b"] == "asleep", "nothing new"
    router.load_sink.update_load("b", running=0, waiting=0, sleep="awake")
    assert (picks(router), states(router)) == ({"b"}, {"a": "asleep", "b": "ready"})


def test_a_cache_that_goes_is_dropped_once_and_one_that_stays_is_kept() -> None:
    router = Router(["a", "b"], seed=1, policy="cache-aware")
    for worker in ("a", "b"):
        router.select_worker(tokens=PROMPT, among=[worker]).on_complete()
    assert held(router) == {"a": 80, "b": 80}
    router.load_sink.update_load("a", sleep="paused")
    assert held(router) == {"a": 80, "b": 80}
    router.load_sink.update_load("a", sleep="asleep")
    assert (held(router), indexed_blocks(router, "a")) == ({"a": 0, "b": 80}, 0)
    router.select_worker(tokens=PROMPT, among=["a"]).on_complete()
    router.load_sink.update_load("a", sleep="asleep")
    router.load_sink.update_load("a", sleep="awake")
    assert held(router) == {"a": 80, "b": 80}, "it was computed since"
    router.load_sink.update_load("b", sleep="asleep", age_s=5.0)
    assert states(router) == {"a": "ready", "b": "asleep"}
    router.validate()


def test_a_late_report_neither_wakes_nor_lays_down() -> None:
    now = [100.0]
    router = Router(["a", "b"], seed=1, clock=lambda: now[0])
    router.load_sink.update_load("a", running=0, waiting=0, sleep="asleep", age_s=1.0)
    router.load_sink.update_load("a", running=0, waiting=0, sleep="awake", age_s=2.0)
    assert states(router)["a"] == "asleep"


def test_one_rank_may_sleep_while_another_computes() -> None:
    router: Router[str] = Router(seed=1, policy="least-loaded")
    router.add_worker("a", dp_size=3)
    router.add_worker("b")
    router.load_sink.update_load("a", sleep={0: "asleep", 2: "paused", 7: "asleep"})
    assert states(router) == {"a#0": "asleep", "a#1": "ready", "a#2": "asleep", "b": "ready"}
    assert picks(router) == {"a#1", "b"}
    router.load_sink.update_load("b", sleep={0: "asleep", 1: "awake"})
    assert states(router)["b"] == "ready", "its other engine computes"
    router.load_sink.update_load("b", sleep={4: "paused", 5: "asleep"})
    assert states(router)["b"] == "asleep"
    router.load_sink.update_load("a", sleep="awake")
    assert picks(router) == {"a#0", "a#1", "a#2"}


@pytest.mark.parametrize(
    ("sleep", "error", "text"),
    [
        ("tired", ValueError, 'sleep must be one of "awake", "paused", "asleep", got "tired"'),
        ({0: "tired"}, ValueError, "sleep must be one of"),
        (True, TypeError, "sleep must be one of"),
        ({-1: "awake"}, ValueError, "a rank of sleep must be from 0"),
        ({"0": "awake"}, TypeError, "a rank of sleep must be int"),
    ],
)
def test_wrong_states_are_named_and_change_nothing(sleep: Any, error: type[Exception], text: str) -> None:
    router = Router(["a"])
    with pytest.raises(error, match=text):
        router.load_sink.update_load("a", running=3, sleep=sleep)
    assert (states(router), router.stats().workers[0].running) == ({"a": "ready"}, None)


def test_events_after_a_sleep_begin_with_an_empty_cache() -> None:
    router = Router(["a"], block_size=16, policy="cache-aware", seed=1)
    blocks = [stored([n], PROMPT[16 * n : 16 * n + 16], parent=n - 1 if n else None) for n in range(6)]
    router.event_sink.apply_events("a", encode_batch(blocks, ts=0.0), seq=0)
    assert indexed_blocks(router, "a") == 6
    router.load_sink.update_load("a", sleep="asleep")
    assert indexed_blocks(router, "a") == 0
    router.load_sink.update_load("a", sleep="awake")
    router.event_sink.apply_events("a", encode_batch(blocks[:4], ts=0.0), seq=1)
    assert held(router) == {"a": 64}
    router.event_sink.apply_events("a", encode_batch([removed([3])], ts=0.0), seq=2)
    assert held(router) == {"a": 48}
    router.validate()


def test_an_admission_releases_no_request_to_a_worker_that_sleeps() -> None:
    async def run() -> None:
        admission = make("a", "b", requests=1)
        admission.router.load_sink.update_load("b", sleep="asleep")
        first = await acquire(admission, tokens=prompt(1))
        waits = await come(admission, 1, tokens=prompt(2))
        await settle()
        assert (first.worker, waits.done()) == ("a", False)
        admission.router.load_sink.update_load("b", sleep="awake")
        assert (await asyncio.wait_for(waits, 60)).worker == "b"
        first.cancel()

    asyncio.run(run())


@in_loop
async def test_the_endpoint_picker_passes_over_a_worker_that_sleeps() -> None:
    urls = ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]
    router = Router(urls, seed=1, policy="round-robin")
    async with serve(router) as service:

        async def picked() -> set[str]:
            streams = [service.stream() for _ in range(4)]
            return {(await stream.request(b'{"prompt": "x"}')).endpoints[0] for stream in streams}

        router.load_sink.update_load(urls[0], sleep="asleep")
        assert await picked() == {"10.0.0.2:8000"}
        router.load_sink.update_load(urls[0], sleep="awake")
        assert await picked() == {"10.0.0.1:8000", "10.0.0.2:8000"}


def test_the_page_of_a_sleeping_engine_keeps_requests_away_until_it_wakes() -> None:
    def page(**awake: int) -> bytes:
        names = ("awake", "weights_offloaded", "discard_all")
        samples = [(f'{{engine="0",model_name="m",sleep_state="{name}"}}', awake.get(name, 0)) for name in names]
        return vllm_page(running=(0.0,), waiting=(0.0,)) + gauge("vllm:engine_sleep_state", *samples).encode()

    with (
        FakeEngine(page(awake=1)) as one,
        FakeEngine(page(awake=1)) as other,
        Router([one.key, other.key], block_size=16, seed=1, policy="cache-aware") as router,
    ):
        router.attach(MetricsSource(interval_s=0.005, timeout_s=20.0))
        eventually(lambda: all(row.running == 0 for row in router.stats().workers))
        router.select_worker(tokens=PROMPT, among=[one.key]).on_complete()
        for state, kept in {"paused": 6, "weights_offloaded": 0, "discard_all": 0}.items():
            one.page = page(**{state: 1})
            eventually(lambda: states(router)[one.key] == "asleep" and indexed_blocks(router, one.key) == kept)  # noqa: B023
            assert picks(router) == {other.key}
        one.page = page(awake=1)
        eventually(lambda: states(router)[one.key] == "ready")
        assert picks(router) == {one.key, other.key}
