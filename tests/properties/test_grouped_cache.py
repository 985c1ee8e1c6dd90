"""The cache of several groups finds what a brute-force model of vLLM's rules finds, with room and without."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.models.grouped_engine import GroupedEngine, HeldByEvents, Prefix, resumable

from cachelb.cache_groups import CacheGroup, CacheLayout
from cachelb.testing.grouped_cache import GroupedCache, Stored

Serving = tuple[Prefix, int]
"""The tokens of a prompt and all but the last of its answer, and how many are the prompt's."""


def names(layout: CacheLayout, tokens: Prefix) -> list[int]:
    """Name the hash blocks of a request."""
    return [hash(tokens[:end]) for end in range(layout.hash_block, len(tokens) + 1, layout.hash_block)]


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
    cache, model = GroupedCache(layout, 100_000), GroupedEngine(layout)
    for tokens, prompt in requests:
        request = cache.serve(names(layout, tokens), prompt, len(tokens))
        assert (request.cached_tokens, request.held_tokens) == model.serve(tokens, prompt)
    if layout.alignment == layout.hash_block:  # else some blocks are kept where nothing resumes
        assert len(cache) == sum(map(len, model.held))


@given(layouts(), servings(), st.integers(4, 60), st.none() | st.integers(1, 20))
def test_what_the_changes_say_is_what_is_served(
    layout: CacheLayout, requests: list[Serving], blocks: int, budget: int | None
) -> None:
    cache = GroupedCache(layout, blocks, max_batched_tokens=budget)
    held = HeldByEvents(len(layout.groups))
    prefixes: dict[int, Prefix] = {}
    for tokens, prompt in requests:
        prefixes |= {hash(tokens[:end]): tokens[:end] for end in range(len(tokens) + 1)}
        expected = resumable(layout, tokens[:prompt], [[prefixes[name] for name in each] for each in held.counts])
        names_ = names(layout, tokens)
        request = cache.look_up(names_, prompt)
        assert request.cached_tokens == expected
        cache.admit(request)
        steps = list(cache.prefill(request))
        ends = range(prompt + 1, len(tokens) + 1) if request.computed == prompt else ()
        for end in ends:
            step = cache.step(request, end)
            if step is None:
                break
            steps.append(step)
        for change in (change for step in steps for change in step):
            if isinstance(change, Stored):
                size = layout.groups[change.group].block_size
                for block in change.kept:
                    held.store(change.group, hash(tokens[: (block + 1) * size]))
            else:
                held.remove(change.group, change.name)
        cache.release(request)
        assert held.copies() <= blocks
        assert len(cache) == sum(map(len, held.counts))
    cache.clear()
    assert len(cache) == 0


FULL, SLIDING = CacheGroup("full_attention", 32), CacheGroup("sliding_window", 32, window=128)
WINDOWS = CacheLayout([SLIDING, FULL])
WIDE = CacheLayout([CacheGroup("sliding_window", 64, window=128), FULL])
STATES = CacheLayout([CacheGroup("mamba", 64), CacheGroup("full_attention", 64)])


def counted(*ends: int) -> set[int]:
    """Number blocks from 0, as a prompt does, instead of from 1."""
    return {end - 1 for end in ends}


@pytest.mark.parametrize(
    ("layout", "held", "prompt", "expected"),
    [
        (WINDOWS, [counted(6, 7, 8, 9), set(range(9))], 300, (288, 288)),
        (WINDOWS, [set(), set(range(6))], 300, (0, 192)),
        (WINDOWS, [counted(3, 4, 5, 6, 7, 8), set(range(8))], 320, (256, 256)),
        (WINDOWS, [counted(5, 6, 8, 9), set(range(9))], 300, (0, 288)),
        (WINDOWS, [counted(1), counted(1, 2)], 64, (32, 32)),
        (WINDOWS, [counted(6, 7, 8, 9), counted(1, 2, 3, 4, 5, 7, 8, 9)], 300, (0, 160)),
        (WIDE, [counted(3, 4), set(range(9))], 300, (256, 256)),
        (STATES, [counted(4, 8), set(range(8))], 520, (512, 512)),
        (STATES, [counted(4, 8), set(range(8))], 512, (256, 448)),
        (CacheLayout([FULL], eagle=True), [set(range(9))], 300, (256, 256)),
        (CacheLayout([FULL]), [set(range(10))], 320, (288, 288)),
    ],
)
def test_resume_point_of_what_is_held(
    layout: CacheLayout, held: list[set[int]], prompt: int, expected: tuple[int, int]
) -> None:
    assert (layout.hit(prompt, held), layout.full_hit(prompt, held)) == expected


def serve(cache: GroupedCache, *prompts: Prefix) -> list[int]:
    return [cache.serve(names(cache.layout, prompt), len(prompt)).cached_tokens for prompt in prompts]


def test_first_request_that_parts_misses_and_the_next_one_hits() -> None:
    prompts = [(*range(200), *range(1000 * i, 1000 * i + 100)) for i in range(1, 4)]
    assert serve(GroupedCache(WINDOWS, 1000), *prompts) == [0, 0, 192]


def test_repeated_and_longer_prompts_resume_behind_the_last_whole_block() -> None:
    prompt = tuple(range(320))
    assert serve(GroupedCache(WINDOWS, 1000), prompt, prompt, (*prompt, 1, 2)) == [0, 288, 288]


def test_prompt_of_one_state_block_is_not_resumed() -> None:
    prompt = tuple(range(64))
    assert serve(GroupedCache(STATES, 1000), prompt, prompt) == [0, 0]


def test_tails_that_join_accept_what_lies_between() -> None:
    prompt = tuple(range(300))
    cache = GroupedCache(WINDOWS, 1000)
    assert serve(cache, prompt[:200], prompt) == [0, 192]
    assert serve(cache, (*prompt[:260], *range(900, 960)), (*prompt[:230], *range(800, 860))) == [256, 224]


@pytest.mark.parametrize(("layout", "expected"), [(WINDOWS, (96, 288)), (STATES, (64, 256))])
def test_generated_tokens_are_held_and_not_resumed(layout: CacheLayout, expected: tuple[int, int]) -> None:
    cache, tokens = GroupedCache(layout, 1000), tuple(range(320))
    cache.serve(names(layout, tokens[:299]), 100, 299)
    request = cache.look_up(names(layout, tokens), 320)
    assert (request.cached_tokens, request.held_tokens) == expected
