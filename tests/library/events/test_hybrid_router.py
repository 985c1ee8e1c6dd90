"""Routers predict what engines with several cache groups take from their caches, from events and without."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.models.grouped_engine import GroupedEngine

from cachelb import Router
from cachelb.cache_groups import CacheGroup, CacheLayout
from cachelb_fakes.events import encode_batch
from cachelb_fakes.fleet.prefix_cache import PrefixCache

GROUP_FIELDS = {"group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window"}
REQUESTS = 80
LONGEST = 690


def _windows(size: int) -> CacheGroup:
    return CacheGroup("sliding_window", size, window=128)


LAYOUTS = {
    "gemma3": (CacheLayout([_windows(32), _windows(32), CacheGroup("full_attention", 32)]), 99),
    "gemma4": (CacheLayout([_windows(64), CacheGroup("full_attention", 32)]), 99),
    "qwen3-next": (CacheLayout([*[CacheGroup("mamba", 64)] * 3, CacheGroup("full_attention", 64)]), 59),
}
"""Groups, and the blocks of a cache that evicts."""
DRAFTING = {f"{name}-eagle": (replace(layout, eagle=True), few) for name, (layout, few) in LAYOUTS.items()}
DRAFTING["full-eagle"] = (CacheLayout([CacheGroup("full_attention", 32)], eagle=True), 59)
LAYOUTS |= DRAFTING


def chats(seed: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Make prompts that begin, continue, cut and repeat conversations, each with its answer."""
    rng = random.Random(seed)

    def fresh(length: int) -> tuple[int, ...]:
        return tuple(rng.randrange(1000) for _ in range(length))

    systems = [fresh(length) for length in (96, 150, 200, 330)]
    talks, prompts = [fresh(96)], [fresh(96)]
    for _ in range(REQUESTS):
        kinds = [
            rng.choice(systems) + fresh(rng.randint(1, 150)),
            rng.choice(talks[-8:]) + fresh(rng.randint(1, 90)),
            rng.choice(talks[-8:])[: rng.randint(1, 200)] + fresh(rng.choice((0, 1, 40))),
            rng.choice(prompts[-8:]),
        ]
        prompt, answer = rng.choices(kinds, (25, 40, 20, 15))[0], fresh(rng.choice((1, 2, 20, 70)))
        if len(prompt) + len(answer) > LONGEST:
            prompt = rng.choice(systems) + fresh(20)
        prompts.append(prompt)
        talks.append(prompt + answer)
        yield prompt, answer


class Engine:
    """A router that places requests on an engine and receives its events, with predicted and found tokens.

    Args:
        layout: Its groups.
        blocks: Those of its cache.
        plain: Whether its events are those of the group with full attention alone, and name no group.
    """

    def __init__(self, layout: CacheLayout, blocks: int, *, plain: bool = False) -> None:
        self._full = next(number for number, group in enumerate(layout.groups) if group.is_full) if plain else None
        self.router = Router(["gpu0"], policy="kv-aware", block_size=32, seed=1)
        self.sent: list[list[dict[str, Any]]] = []
        self.found: list[tuple[int, int]] = []
        self._cache = PrefixCache(
            "gpu0", layout=layout, block_size=layout.hash_block, max_blocks=blocks, publish=self._publish
        )

    def _publish(self, events: list[dict[str, Any]]) -> None:
        if self._full is not None:
            kept = [event for event in events if event["group_idx"] == self._full]
            events = [{key: event[key] for key in event if key not in GROUP_FIELDS} for event in kept]
        batch = encode_batch(events, ts=len(self.sent) + 1.0)
        self.router.event_sink.apply_events("gpu0", batch, seq=len(self.sent))
        self.sent.append(events)

    def serve(self, prompt: tuple[int, ...], answer: tuple[int, ...]) -> None:
        decision = self.router.select_worker(tokens=prompt)
        cached = self._cache.look_up(np.array(prompt, np.uint32), None)
        kept = self._cache.keep(np.array(prompt, np.uint32), None)
        assert kept is not None
        self.found.append((decision.matched_tokens, cached))
        self._cache.extend(kept, list(answer))
        self._cache.release(kept)
        decision.on_complete(cached_tokens=cached, prompt_tokens=len(prompt), output_tokens=len(answer))


@pytest.mark.parametrize("evicts", [True, False], ids=["few", "many"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_events_say_exactly_where_an_engine_resumes(name: str, evicts: bool) -> None:
    layout, few = LAYOUTS[name]
    engine = Engine(layout, few if evicts else 3_000)
    if layout.eagle:
        engine.router.add_worker("gpu0", cache_layout=layout)
    for prompt, answer in chats(seed=3):
        engine.serve(prompt, answer)
    assert [each for each in engine.found if each[0] != each[1]] == []
    assert sum(cached for _, cached in engine.found) > 2_000
    stats = engine.router.stats().workers[0].kv_events
    assert stats is not None
    assert stats.drafts == layout.eagle
    removed = sum(event["type"] == "BlockRemoved" for events in engine.sent for event in events)
    assert (removed > 0) == evicts
    engine.router.validate()


@pytest.mark.parametrize("name", DRAFTING)
def test_answers_show_that_an_engine_drafts(name: str) -> None:
    engine = Engine(DRAFTING[name][0], 3_000)
    for seed in (3, 4):
        for prompt, answer in chats(seed):
            engine.serve(prompt, answer)
    wrong = [predicted > cached for predicted, cached in engine.found]
    assert 8 <= sum(wrong[:REQUESTS]) < REQUESTS // 2
    assert not any(wrong[REQUESTS:])
    stats = engine.router.stats().workers[0].kv_events
    assert stats is not None
    assert stats.drafts
    assert [each for each in engine.found[REQUESTS:] if each[0] != each[1]] == []


@pytest.mark.parametrize("given", [1.0, 0.5, 0.0], ids=["given", "sometimes", "unseen"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_alone_never_promises_more_than_an_engine_has(name: str, given: float) -> None:
    layout, _ = LAYOUTS[name]
    router = Router(["gpu0"], policy="kv-aware", block_size=32, seed=1)
    router.add_worker("gpu0", cache_layout=layout)
    engine, exact, rng = GroupedEngine(layout), 0, random.Random(5)
    for prompt, answer in chats(seed=5):
        decision = router.select_worker(tokens=prompt)
        cached, _ = engine.serve(prompt + answer[:-1], len(prompt))
        assert decision.matched_tokens <= cached
        exact += decision.matched_tokens == cached
        decision.on_complete(output_ids=answer if rng.random() < given else None)
    # Predictions are less exact behind an answer that the router has not seen, and where an engine that drafts keeps
    # the state to resume a prompt with inside the answer.
    unseen = 0.8 if all(group.is_full for group in layout.groups) else 0.9
    seen = 0.95 if layout.eagle else 1.0
    assert exact >= REQUESTS * (seen if given == 1 else unseen)
    router.validate()


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "full-eagle"])
def test_what_an_engine_finds_bounds_predictions_where_its_events_leave_groups_out(name: str) -> None:
    layout, few = LAYOUTS[name]
    engine = Engine(layout, few, plain=True)
    router = engine.router
    router.add_worker("gpu0", cache_layout=replace(layout, announced=False))
    lowered = 0
    for prompt, answer in chats(seed=3):
        engine.serve(prompt, answer)
        matched, cached = engine.found[-1]
        if matched > cached:
            lowered += 1
            assert router.explain(tokens=prompt).candidates[0].overlap_blocks * 32 <= cached
    assert lowered > 0
    assert sum(matched == cached for matched, cached in engine.found) > REQUESTS * 0.6
    stats = router.stats().workers[0].kv_events
    assert stats is not None
    assert (stats.checked, sum(stats.repairs.values())) == (0, 0)
    router.validate()
