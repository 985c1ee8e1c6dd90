"""The harness drives real engines: what it promises to tests built upon it."""

from __future__ import annotations

import random

import pytest
from tests.engine.engine import BLOCK_SIZE, Engine, EngineError


def prompt(seed: int, length: int) -> list[int]:
    """Return token ids that no other seed gives."""
    generator = random.Random(seed)
    return [generator.randrange(5, 4096) for _ in range(length)]


def test_prompt_sent_twice_reports_cached_tokens_on_each_engine_alone(engines: list[Engine]) -> None:
    tokens = prompt(1, 5 * BLOCK_SIZE + 3)
    for engine in engines:
        assert engine.complete(tokens).cached_tokens == 0
        again = engine.complete(tokens)
        assert (again.prompt_tokens, again.cached_tokens) == (len(tokens), 5 * BLOCK_SIZE)
        assert len(again.output) == 1


def test_adapter_and_salt_have_caches_of_their_own(engines: list[Engine]) -> None:
    tokens = prompt(2, 3 * BLOCK_SIZE + 1)
    for adapter, salt in ((None, None), ("la", None), ("lb", None), (None, "a"), ("la", "a")):
        cached = [engines[0].complete(tokens, adapter=adapter, cache_salt=salt).cached_tokens for _ in range(2)]
        assert cached == [0, 3 * BLOCK_SIZE], (adapter, salt)


def test_whole_blocks_evict_the_tail_of_older_prompts_first(engines: list[Engine]) -> None:
    engine = engines[0]
    old = prompt(3, 20 * BLOCK_SIZE + 1)
    engine.complete(old)
    for seed in range(4, 7):  # 20 and 3 times 16 blocks do not fit into 63
        engine.complete(prompt(seed, 16 * BLOCK_SIZE))
    cached = engine.complete(old).cached_tokens
    assert 0 < cached < 20 * BLOCK_SIZE


def test_reset_empties_the_cache(engines: list[Engine]) -> None:
    tokens = prompt(7, 4 * BLOCK_SIZE)
    engines[0].complete(tokens)
    engines[0].reset_cache()
    assert engines[0].complete(tokens).cached_tokens == 0


def test_refused_request_names_the_engine_and_shows_its_log(engines: list[Engine]) -> None:
    with pytest.raises(EngineError, match="engine w0 answered 404 to /v1/completions") as refused:
        engines[0].complete(prompt(9, 10), adapter="unknown")
    assert "POST /reset_prefix_cache" in str(refused.value)
