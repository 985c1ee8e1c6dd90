"""Answers that are given by their tokens: workers without events are known to hold them behind the prompt."""

from __future__ import annotations

import random

import numpy as np
import pytest

from cachelb import Decision, Router
from cachelb.policies import CacheAware, KvAware, PrefixCache
from cachelb_fakes.events import encode_batch

SIZE = 16
PROMPT = list(range(40))
ANSWER = list(range(500, 530))
NEXT = PROMPT + ANSWER + [7] * 50


@pytest.mark.parametrize("policy", ["adaptive", "kv-aware", "cache-aware", "prefix-cache"])
def test_a_conversation_is_found_up_to_the_last_token_that_was_computed(policy: str) -> None:
    """A worker holds the whole blocks of what was computed, whatever was asked and answered before."""
    rng, held = random.Random(3), set[tuple[int, ...]]()
    router = Router(["gpu0"], policy=policy, block_size=SIZE, seed=1)
    talks = [tuple(PROMPT)]
    for _ in range(200):
        talk = rng.choice(talks[-6:])
        prompt = talk[: rng.randint(1, len(talk))] + tuple(rng.choices(range(3), k=rng.randint(0, 30)))
        answer = tuple(rng.choices(range(3), k=rng.choice((0, 1, 2, 17, 40))))
        decision = router.select_worker(tokens=prompt)
        computed = (prompt + answer[:-1]) if answer else prompt
        found = 0
        while found + SIZE <= len(prompt) and prompt[: found + SIZE] in held:
            found += SIZE
        # The last token is computed in any case.
        assert decision.matched_tokens == min(found, (len(prompt) - 1) // SIZE * SIZE)
        held |= {computed[:end] for end in range(SIZE, len(computed) + 1, SIZE)}
        decision.on_complete(output_ids=np.array(answer, np.uint32) if rng.random() < 0.5 else answer)
        talks.append((prompt + answer)[:200])
    assert router.stats().unread_usage == 0
    router.validate()


def test_policies_without_a_router_know_them_too() -> None:
    for policy in (CacheAware(seed=1), KvAware(seed=1), PrefixCache(seed=1)):
        policy.select_worker(["a"], tokens=PROMPT).on_complete(output_ids=ANSWER)
        assert policy.select_worker(["a"], tokens=NEXT).matched_tokens == 64


def found_behind_an_answer(router: Router[str], **arguments: object) -> int:
    """Return what is found of a prompt that continues an answer."""
    router.select_worker(tokens=PROMPT, **arguments).on_complete(output_ids=ANSWER)  # type: ignore[arg-type]
    return router.select_worker(tokens=NEXT, **arguments).matched_tokens  # type: ignore[arg-type]


def test_an_answer_belongs_to_the_identity_of_its_prompt() -> None:
    router = Router(["a"], seed=1)
    assert found_behind_an_answer(router, cache_salt="one", lora="adapter") == 64
    assert router.select_worker(tokens=NEXT, cache_salt="one").matched_tokens == 0
    assert router.select_worker(tokens=NEXT).matched_tokens == 0
    assert found_behind_an_answer(router, headers={"x-lora": "x"}, model="m") == 64


def test_only_the_worker_of_a_request_holds_its_answer() -> None:
    router = Router(["a", "b"], policy="kv-aware", seed=1)
    router.select_worker(tokens=PROMPT, among=["b"]).on_complete(output_ids=ANSWER)
    found = {each.key: each.overlap_blocks for each in router.explain(tokens=NEXT).candidates}
    assert found == {"a": 0, "b": 4}
    router.load_sink.reset_cache("b")
    assert router.select_worker(tokens=NEXT).matched_tokens == 0


def test_the_decode_worker_of_a_pair_holds_the_answer() -> None:
    router: Router[str] = Router(policy="kv-aware", seed=1)
    router.add_worker("p", role="prefill")
    router.add_worker("d", role="decode")
    pair = router.select_pair(tokens=PROMPT)
    assert pair.prefill is not None
    pair.on_complete(cached_tokens=0, output_ids=ANSWER)
    again = router.select_pair(tokens=NEXT)
    assert again.prefill is not None
    assert (again.prefill.matched_tokens, again.decode.matched_tokens) == (32, 64)
    again.cancel()


def test_engines_with_events_say_themselves_what_they_hold() -> None:
    router = Router(["a"], policy="kv-aware", seed=1)
    router.event_sink.apply_events("a", encode_batch([{"type": "AllBlocksCleared"}], ts=1.0), seq=0)
    router.select_worker(tokens=PROMPT).on_complete(output_ids=ANSWER)
    assert router.explain(tokens=NEXT).candidates[0].overlap_blocks == 2


@pytest.mark.parametrize(
    "arguments",
    [{"text": "x" * 400}, {"blocks": [1, 2]}, {"by_load": True}, {"tokens": PROMPT, "prompt_tokens": 90}],
    ids=str,
)
def test_an_answer_behind_another_form_of_prompt_counts_but_names_no_blocks(arguments: dict[str, object]) -> None:
    router = Router(["a"], seed=1)
    router.select_worker(**arguments).on_complete(output_ids=ANSWER)  # type: ignore[arg-type]
    assert (router.stats().unread_usage, router.records.recent()[0].output_tokens) == (0, len(ANSWER))
    assert router.select_worker(tokens=NEXT).matched_tokens <= 32
    router.validate()


@pytest.mark.parametrize("ids", ["text", [-1], [2**32], 5, [1.5], np.zeros((2, 2), np.uint32)], ids=str)
def test_ids_that_cannot_be_read_are_left_out_and_counted(ids: object) -> None:
    router = Router(["a"], policy="kv-aware", seed=1)
    decision: Decision[str] = router.select_worker(tokens=PROMPT)
    decision.on_complete(output_ids=ids)  # type: ignore[arg-type]
    assert (decision.is_open, router.stats().unread_usage) == (False, 1)
    assert router.records.recent()[0].output_tokens is None
    assert router.select_worker(tokens=NEXT).matched_tokens == 32


def test_an_answer_given_after_the_end_is_too_late() -> None:
    router = Router(["a"], seed=1)
    decision = router.select_worker(tokens=PROMPT)
    decision.on_complete()
    decision.on_complete(output_ids=ANSWER)
    assert router.select_worker(tokens=NEXT).matched_tokens == 32
