"""The cache of several groups finds what a brute-force model of vLLM's rules finds, with room and without."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models.grouped_engine import GroupedEngine, HeldByEvents, Prefix, resumable

from cachelb._core import GroupedEngineCache
from cachelb.cache_groups import CacheGroup, CacheLayout

Serving = tuple[Prefix, int]
"""The tokens of a prompt and all but the last of its answer, and how many are the prompt's."""


def name(prefix: Prefix) -> int:
    """Hash a prefix."""
    return hash(prefix) % 2**64


def names(layout: CacheLayout, tokens: Prefix) -> list[int]:
    """Name the hash blocks of a request."""
    return [name(tokens[:end]) for end in range(layout.hash_block, len(tokens) + 1, layout.hash_block)]


def serve(cache: GroupedEngineCache, layout: CacheLayout, tokens: Prefix, prompt: int) -> tuple[int, int]:
    """Serve a request alone; return what it took from the cache, and what full groups held."""
    request, cached, held = cache.start(names(layout, tokens), prompt)
    cache.prefill(request)
    cache.extend(request, names(layout, tokens), len(tokens))
    cache.release(request)
    cache.validate()
    return cached, held


@st.composite
def layouts(draw: st.DrawFn) -> CacheLayout:
    """Draw groups that go together, of one block size or several."""
    size = draw(st.sampled_from([1, 2, 3]))
    same = draw(st.booleans())
    sizes = st.just(size) if same else st.sampled_from([size, 2 * size])
    groups = [CacheGroup("full_attention", draw(sizes))]
    kinds = ["sliding_window", "mamba", "mla_attention", *(["chunked_local_attention"] if same else [])]
    for kind in draw(st.lists(st.sampled_from(kinds), max_size=3)):
        values: dict[str, Any] = {"sliding_window": {"window": draw(st.integers(1, 5 * size))}}.get(kind, {})
        if kind == "chunked_local_attention":
            values = {"chunk": draw(st.integers(1, 4)) * size}
        groups.append(CacheGroup(kind, draw(sizes), **values))  # type: ignore[arg-type]
    has_chunks = any(group.kind == "chunked_local_attention" for group in groups)
    sparse = any(group.is_sparse for group in groups)
    side = {group.kind for group in groups} & {"sliding_window", "chunked_local_attention"}
    if not side:  # engines whose states are larger than hash blocks resume inside blocks
        groups = [CacheGroup(group.kind, size) for group in groups]
    interval = draw(st.sampled_from([0, 0, None, *([2 * size, 4 * size, 6 * size] if sparse else [])]))
    return CacheLayout(draw(st.permutations(groups)), interval, eagle=not has_chunks and draw(st.booleans()))


@st.composite
def servings(draw: st.DrawFn) -> list[Serving]:
    """Draw chats: new prompts, follow-ups, truncated and repeated ones, which part anywhere."""
    served: list[Serving] = []
    for number in range(draw(st.integers(1, 12))):
        earlier = draw(st.sampled_from(served))[0] if served else ()
        shared = earlier[: draw(st.integers(0, len(earlier)))] if draw(st.booleans()) else earlier
        prompt = shared + tuple(range(100 * number, 100 * number + draw(st.integers(0 if shared else 1, 14))))
        answer = tuple(range(100 * number + 50, 100 * number + 50 + draw(st.integers(0, 9))))
        served.append((prompt + answer, len(prompt)))
    return served


@given(layouts(), servings())
def test_with_room_for_all_a_cache_serves_what_the_rules_say(layout: CacheLayout, requests: list[Serving]) -> None:
    cache, model = GroupedEngineCache(100_000, asdict(layout)), GroupedEngine(layout)
    for tokens, prompt in requests:
        assert serve(cache, layout, tokens, prompt) == model.serve(tokens, prompt)
    if layout.alignment == layout.hash_block:  # else some blocks are kept where nothing resumes
        assert len(cache) == sum(map(len, model.held))


@given(layouts(), servings(), st.integers(4, 60), st.none() | st.integers(1, 20))
def test_what_the_changes_say_is_what_is_served(
    layout: CacheLayout, requests: list[Serving], blocks: int, budget: int | None
) -> None:
    cache = GroupedEngineCache(blocks, asdict(layout), max_batched_tokens=budget)
    held = HeldByEvents(len(layout.groups))
    prefixes: dict[int, Prefix] = {}
    for tokens, prompt in requests:
        prefixes |= {name(tokens[:end]): tokens[:end] for end in range(len(tokens) + 1)}
        expected = resumable(layout, tokens[:prompt], [[prefixes[name] for name in each] for each in held.counts])
        names_ = names(layout, tokens)
        assert cache.look_up(names_, prompt)[0] == expected
        request, cached, _ = cache.start(names_, prompt)
        assert cached == expected
        for step in [*cache.prefill(request), *cache.extend(request, names_, len(tokens))]:
            for change in step:
                if len(change) == 2:
                    held.remove(*change)
                    continue
                group, _, _, kept = change
                size = layout.groups[group].block_size
                for block in kept:
                    held.store(group, name(tokens[: (block + 1) * size]))
        cache.validate()
        cache.release(request)
        assert held.copies() <= blocks
        assert len(cache) == sum(map(len, held.counts))
    cache.clear()
    cache.validate()
    assert len(cache) == 0


FULL, SLIDING = CacheGroup("full_attention", 32), CacheGroup("sliding_window", 32, window=128)
WINDOWS = CacheLayout([SLIDING, FULL])
STATES = CacheLayout([CacheGroup("mamba", 64), CacheGroup("full_attention", 64)])


def cached(layout: CacheLayout, *prompts: Prefix) -> list[int]:
    """Serve prompts one after the other in a cache with room for all."""
    cache = GroupedEngineCache(1000, asdict(layout))
    return [serve(cache, layout, prompt, len(prompt))[0] for prompt in prompts]


def test_first_request_that_parts_misses_and_the_next_one_hits() -> None:
    prompts = [(*range(200), *range(1000 * i, 1000 * i + 100)) for i in range(1, 4)]
    assert cached(WINDOWS, *prompts) == [0, 0, 192]


def test_repeated_and_longer_prompts_resume_behind_the_last_whole_block() -> None:
    prompt = tuple(range(320))
    assert cached(WINDOWS, prompt, prompt, (*prompt, 1, 2)) == [0, 288, 288]


def test_prompt_of_one_state_block_is_not_resumed() -> None:
    prompt = tuple(range(64))
    assert cached(STATES, prompt, prompt) == [0, 0]


def test_tails_that_join_accept_what_lies_between() -> None:
    prompt = tuple(range(300))
    later = (*prompt[:260], *range(900, 960)), (*prompt[:230], *range(800, 860))
    assert cached(WINDOWS, prompt[:200], prompt, *later) == [0, 192, 256, 224]


@pytest.mark.parametrize(("layout", "expected"), [(WINDOWS, (96, 288)), (STATES, (64, 256))])
def test_generated_tokens_are_held_and_not_resumed(layout: CacheLayout, expected: tuple[int, int]) -> None:
    cache, tokens = GroupedEngineCache(1000, asdict(layout)), tuple(range(320))
    serve(cache, layout, tokens[:299], 100)
    assert cache.look_up(names(layout, tokens), 320) == expected


def test_copies_of_a_block_are_found_in_the_order_in_which_they_came() -> None:
    layout = CacheLayout([FULL])
    cache = GroupedEngineCache(4, asdict(layout))
    prompt, other, last = (tuple(range(first, first + 32)) for first in (0, 100, 200))
    first, second, third, apart = (cache.start(names(layout, each), 32)[0] for each in [prompt] * 3 + [other])
    for request in (first, second, third, apart):
        cache.prefill(request)
    for request in (first, second, apart, third):
        cache.release(request)
    serve(cache, layout, last, 32)  # in the room of the first copy
    # The second copy is used again, so the other prompt makes room, not a copy.
    assert serve(cache, layout, (*prompt, 1), 33) == (32, 32)
    assert cache.look_up(names(layout, other), 33) == (0, 0)
