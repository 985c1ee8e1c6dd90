"""Engines whose blocks are not of the router's size, known by their metrics, by their events, or by both."""

from __future__ import annotations

from typing import Any

import pytest
from tests.library.events.test_router_events import events_of
from tests.models.engine_blocks import EngineBlocks, prompts
from tests.models.loads import indexed_blocks
from tests.models.metrics_pages import vllm_page
from tests.models.metrics_server import FakeEngine, eventually

from cachelb import Router
from cachelb.sources import MetricsSource
from cachelb_fakes.events import cleared, encode_batch, removed, stored

SIZES = {16: (1, 4, 16, 32, 48, 128), 32: (8, 32, 64, 96), 24: (8, 48, 12)}
"""Block sizes of the router, each with those of engines that fit."""


class Publisher:
    """An engine that publishes the blocks it stores and drops."""

    def __init__(self, engine: EngineBlocks) -> None:
        self.engine = engine
        self.names: dict[tuple[int, ...], int] = {}

    def compute(self, tokens: list[int]) -> bytes:
        new, gone = self.engine.keep(tokens)
        events = [removed([self.names[block]]) for block in gone]
        if new:
            for block in new:
                self.names.setdefault(block, len(self.names) + 1)
            size = self.engine.block_size
            before = new[0][:-size]
            own = new[-1][len(before) :]
            parent = self.names[before] if before else None
            events.append(stored([self.names[b] for b in new], own, block_size=size, parent=parent))
        return encode_batch(events, ts=1.0)


def credited(router: Router[str], tokens: list[int]) -> dict[str, int]:
    return {row.key: int(row.matched_tokens) for row in router.explain(tokens=tokens).candidates}


@pytest.mark.parametrize("policy", ["cache-aware", "kv-aware", "round-robin"])
@pytest.mark.parametrize("known_by", ["metrics", "events", "both"])
@pytest.mark.parametrize("own_size", SIZES)
def test_what_each_engine_of_a_mixed_fleet_can_use_again_is_credited(own_size: int, known_by: str, policy: str) -> None:
    engines = {f"gpu{size}": EngineBlocks(size) for size in SIZES[own_size]}
    publishers = {key: Publisher(engine) for key, engine in engines.items()}
    router = Router(list(engines), policy=policy, block_size=own_size, seed=3, clock=lambda: 1.0)
    if known_by != "events":
        for key, engine in engines.items():
            router.load_sink.learn_worker(key, block_size=engine.block_size)
    if known_by != "metrics":
        for key, publisher in publishers.items():
            router.event_sink.apply_events(key, publisher.compute(list(range(10**6, 10**6 + 128))))
    saved = 0
    for tokens in prompts(own_size, 120):
        expected = {key: engine.credit(tokens, own_size) for key, engine in engines.items()}
        assert credited(router, tokens) == expected
        decision = router.select_worker(tokens=tokens)
        assert decision.matched_tokens == expected[decision.worker]
        assert decision.best_matched_tokens == max(expected.values())
        saved += decision.matched_tokens
        told = publishers[decision.worker].compute(tokens)
        if known_by != "metrics":
            router.event_sink.apply_events(decision.worker, told)
        decision.on_complete()
    assert saved > 1_000
    assert router.stats().dropped["block-size-mismatch"] == 0
    router.validate()


@pytest.mark.parametrize(("own_size", "size"), [(own, size) for own, sizes in SIZES.items() for size in sizes])
def test_capacity_in_blocks_of_the_engine_is_kept_to_exactly(own_size: int, size: int) -> None:
    unit = max(own_size, size)
    kv_blocks = 7 * unit // size
    engine = EngineBlocks(unit, capacity=7)
    router = Router(["gpu0"], block_size=own_size, seed=1)
    router.load_sink.learn_worker("gpu0", kv_blocks=kv_blocks, block_size=size)
    for tokens in prompts(size, 150, unit=unit):
        assert credited(router, tokens) == {"gpu0": engine.credit(tokens, own_size)}
        router.select_worker(tokens=tokens).on_complete()
        engine.keep(tokens)
        assert indexed_blocks(router, "gpu0") == len(engine.used) * unit // own_size
    assert router.stats().evictions["capacity"] > 0
    router.validate()


@pytest.mark.parametrize(("own_size", "size"), [(16, 32), (16, 128), (16, 4), (32, 96)])
def test_an_engine_that_evicts_as_its_events_say_is_followed_within_its_capacity(own_size: int, size: int) -> None:
    engine = EngineBlocks(size, capacity=max(8, 256 // size))
    publisher = Publisher(engine)
    router = Router(["gpu0"], policy="kv-aware", block_size=own_size, seed=1)
    router.load_sink.learn_worker("gpu0", kv_blocks=engine.capacity, block_size=size)
    for tokens in prompts(size, 150):
        router.event_sink.apply_events("gpu0", publisher.compute(tokens))
        assert credited(router, tokens) == {"gpu0": engine.credit(tokens, own_size)}
    assert router.stats().evictions["capacity"] == 0, "there is room for all that the engine has"
    router.validate()


def test_the_two_facts_may_come_in_any_order_and_apart() -> None:
    facts: list[dict[str, Any]] = [{"kv_blocks": 3}, {"block_size": 32}]
    for order in (facts, facts[::-1], [{"kv_blocks": 3, "block_size": 32}]):
        router = Router(["gpu0"], seed=1)
        for fact in order:
            router.load_sink.learn_worker("gpu0", **fact)
        router.select_worker(tokens=range(1_000, 1_096)).on_complete()
        router.select_worker(tokens=range(96)).on_complete()
        assert indexed_blocks(router, "gpu0") == 6
        router.add_worker("gpu0", weight=2.0)
        assert indexed_blocks(router, "gpu0") == 6
        assert router.select_worker(tokens=range(65)).matched_tokens == 64
        assert router.select_worker(tokens=range(64)).matched_tokens == 32, "the last token's block is computed again"


def test_a_capacity_from_the_configuration_is_counted_as_the_engine_counts() -> None:
    router: Router[str] = Router(policy="kv-aware")
    router.add_worker("gpu0", kv_blocks=3)
    router.event_sink.apply_events("gpu0", encode_batch([stored([1], range(32), block_size=32)], ts=1.0))
    chain = stored([2, 3], range(32, 96), block_size=32, parent=1)
    router.event_sink.apply_events("gpu0", encode_batch([chain], ts=1.0))
    assert indexed_blocks(router, "gpu0") == 6


@pytest.mark.parametrize(("own_size", "size"), [(16, 24), (16, 40), (32, 24), (24, 16)])
def test_sizes_that_do_not_fit_are_refused_and_nothing_changes(own_size: int, size: int) -> None:
    router = Router(["gpu0"], block_size=own_size)
    message = f'"gpu0" has blocks of {size} tokens, the router of {own_size}: .* build it with block_size={size}'
    with pytest.raises(ValueError, match=message):
        router.load_sink.learn_worker("gpu0", kv_blocks=1, block_size=size)
    router.select_worker(tokens=range(4 * own_size + 1)).on_complete()
    assert router.select_worker(tokens=range(4 * own_size + 1)).matched_tokens == 4 * own_size


def test_one_engine_serves_models_of_several_block_sizes() -> None:
    router: Router[str] = Router(block_size=16, models={"long": 64, "odd": 24})
    router.add_worker("gpu0")
    router.load_sink.learn_worker("gpu0", kv_blocks=6, block_size=32)
    for model, matched, held in ((None, 160, 12), ("long", 128, 3), ("odd", 96, 8)):
        before = indexed_blocks(router, "gpu0")
        router.select_worker(tokens=range(170), model=model).on_complete()
        decision = router.select_worker(tokens=range(170), model=model)
        assert decision.matched_tokens == matched, model
        decision.on_complete()
        router.select_worker(tokens=range(1_000, 2_000), model=model).on_complete()
        assert indexed_blocks(router, "gpu0") - before <= held, model


def test_ranks_share_what_the_metrics_state_and_tell_their_own_events() -> None:
    router: Router[str] = Router(policy="kv-aware")
    router.add_worker("gpu0", dp_size=2)
    router.load_sink.learn_worker("gpu0", block_size=32)
    event = encode_batch([stored([1], range(32), block_size=32)], ts=1.0)
    router.event_sink.apply_events("gpu0", event, dp_rank=1)
    assert sorted(credited(router, list(range(60))).values()) == [0, 32]
    assert events_of(router, 1).mismatch is None


@pytest.mark.parametrize("first", ["metrics", "events"])
def test_events_win_over_metrics_that_state_another_size_and_both_are_named(
    first: str, caplog: pytest.LogCaptureFixture
) -> None:
    router = Router(["gpu0"], policy="kv-aware")
    event = encode_batch([stored([1, 2], range(64), block_size=32)], ts=1.0)
    if first == "metrics":
        router.load_sink.learn_worker("gpu0", block_size=16)
    router.event_sink.apply_events("gpu0", event)
    if first == "events":
        router.load_sink.learn_worker("gpu0", block_size=16)
    assert events_of(router).mismatch == "the engine's blocks hold 32 tokens by its events and 16 by its metrics"
    assert router.stats().dropped["block-size-mismatch"] == 1
    assert router.stats().workers[0].learned == {"block_size": 32}
    assert credited(router, list(range(64))) == {"gpu0": 32}
    router.load_sink.learn_worker("gpu0", block_size=16)
    assert router.stats().dropped["block-size-mismatch"] == 1, "nothing new"
    router.load_sink.update_load("gpu0", running=0)
    found = "worker gpu0: blocks of 32 tokens by its KV events, which count; block_size is 16 by its metrics"
    assert [record.getMessage() for record in caplog.records] == [found]
    router.load_sink.learn_worker("gpu0", block_size=32)
    assert events_of(router).mismatch is None
    assert router.stats().workers[0].learned == {}
    assert events_of(router).engine_block_size == 32


def test_a_size_is_forgotten_with_its_worker_and_kept_by_the_child_of_a_fork() -> None:
    router = Router(["gpu0"], seed=1)

    def matched() -> int:
        router.select_worker(tokens=range(56)).on_complete()
        return router.select_worker(tokens=range(56)).matched_tokens

    assert matched() == 48
    router.load_sink.learn_worker("gpu0", block_size=32)
    assert matched() == 32, "also of what was recorded before"
    assert router._fleet.after_fork(anew=True) is None
    assert matched() == 32
    router.remove_worker("gpu0")
    router.add_worker("gpu0")
    assert matched() == 48


def test_a_poller_beside_events_is_not_refused_and_says_what_the_cache_holds() -> None:
    page = vllm_page(config='block_size="32",num_gpu_blocks="3"')
    with FakeEngine(page) as engine, Router([engine.key], policy="kv-aware", block_size=16) as router:
        chain = stored([1, 2, 3], range(96), block_size=32)
        router.event_sink.apply_events(engine.key, encode_batch([chain], ts=1.0))
        source = MetricsSource(interval_s=0.005, timeout_s=20.0)
        router.attach(source)
        eventually(lambda: router.stats().workers[0].running is not None)
        eventually(lambda: source.stats().polls > 2)
        assert credited(router, list(range(96))) == {engine.key: 64}
        more = stored([4], range(96, 128), block_size=32, parent=3)
        router.event_sink.apply_events(engine.key, encode_batch([removed([3]), more, cleared(), chain], ts=2.0))
        assert indexed_blocks(router, engine.key) == 6
        assert source.stats().workers[engine.key].refused == 0
        assert events_of(router).mismatch is None
        engine.page = vllm_page(config='block_size="16",num_gpu_blocks="6"')
        eventually(lambda: events_of(router).mismatch is not None)
        assert router.stats().dropped["block-size-mismatch"] == 1
        assert indexed_blocks(router, engine.key) == 6
