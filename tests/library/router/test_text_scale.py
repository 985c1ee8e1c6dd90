"""How many tokens texts have is learned from what engines count; which blocks they share is not."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachelb import Router

CHAT = "/v1/chat/completions"
COMPLETE = "/v1/completions"
BLOCK = 16
LONG = "Prompts of another language. " * 400


def body(text: str | list[str] = LONG, **fields: Any) -> dict[str, Any]:
    return {"body": json.dumps({"model": "m", "prompt": text, **fields}).encode(), "path": COMPLETE}


def taught(scale: float, *, times: int = 50, **request: Any) -> Router[str]:
    """A router whose engine counted `scale` tokens per four bytes."""
    router = Router(["gpu0"], seed=1)
    request = request or body()
    units = router.select_worker(**request, dry_run=True).prompt_tokens
    for _ in range(times):
        router.select_worker(**request).on_complete(prompt_tokens=round(units * scale))
    return router


@pytest.mark.parametrize("scale", [0.25, 0.8, 1.0, 1.7, 3.5])
def test_texts_count_as_engines_count_them(scale: float) -> None:
    router = taught(scale)
    units = math.ceil(len(LONG) / 4)
    decision = router.select_worker(**body())
    assert decision.prompt_tokens == pytest.approx(scale * units, rel=0.03)
    blocks = (units - 1) // BLOCK
    assert decision.matched_tokens == blocks * BLOCK * decision.prompt_tokens // units
    assert decision.explain().candidates[0].matched_tokens == decision.matched_tokens
    (worker,) = router.stats().workers
    load = worker.pending_prefill_tokens
    assert load == decision.prompt_tokens - decision.matched_tokens


@pytest.mark.parametrize(
    "other",
    [
        {**body(), "model": "another"},
        {"messages": [{"role": "user", "content": LONG}], "model": "m"},
        {"body": json.dumps({"model": "m", "input": LONG}).encode(), "path": "/v1/embeddings"},
        {"tokens": [1] * math.ceil(len(LONG) / 4), "model": "m"},
    ],
    ids=["model", "chat", "embedding", "tokens"],
)
def test_what_one_model_and_kind_teach_concerns_no_other(other: dict[str, Any]) -> None:
    expected = Router(["gpu0"], seed=1).select_worker(**other, dry_run=True).prompt_tokens
    assert taught(2.0).select_worker(**other, dry_run=True).prompt_tokens == expected


@pytest.mark.parametrize(
    "same",
    [{"text": LONG, "model": "m"}, body(LONG, stream=True, temperature=0.5), body([LONG, "And another."])],
    ids=["text", "other fields", "two prompts"],
)
def test_the_same_text_counts_the_same_however_it_comes(same: dict[str, Any]) -> None:
    fresh, router = Router(["gpu0"], seed=1), taught(2.0)
    units = fresh.select_worker(**same, dry_run=True).prompt_tokens
    decision = router.select_worker(**same, dry_run=True)
    assert decision.prompt_tokens == pytest.approx(2 * units, rel=0.03)
    assert decision.matched_tokens == pytest.approx(2 * math.ceil(len(LONG) / 4), rel=0.03)


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.mark.parametrize(
    "request_",
    [
        body(n=4),
        {
            "body": json.dumps(
                {"model": "m", "messages": [{"role": "user", "content": [IMAGE, {"type": "text", "text": LONG}]}]}
            ).encode(),
            "path": CHAT,
        },
        {"body": b"{" + LONG.encode(), "path": CHAT},
        {"prompt_tokens": 3_000, "model": "m", "by_load": True},
    ],
    ids=["answers", "image", "unread", "no text"],
)
def test_counts_of_more_than_the_text_teach_nothing(request_: dict[str, Any]) -> None:
    expected = Router(["gpu0"], seed=1).select_worker(**request_, dry_run=True).prompt_tokens
    router = taught(3.0, **request_)
    assert router.select_worker(**request_, dry_run=True).prompt_tokens == expected


def test_counts_of_requests_that_did_not_complete_teach_nothing() -> None:
    router = Router(["gpu0"], seed=1)
    units = router.select_worker(**body(), dry_run=True).prompt_tokens
    for _ in range(50):
        decision = router.select_worker(**body())
        decision.on_error(500)
        decision.on_complete(prompt_tokens=3 * units)
    assert router.select_worker(**body(), dry_run=True).prompt_tokens == units


@given(stated=st.integers(0, 5_000), shared=st.integers(0, len(LONG)))
def test_a_stated_length_is_believed(stated: int, shared: int) -> None:
    router = Router(["gpu0"], seed=1)
    router.select_worker(text=LONG).on_complete()
    text = LONG[:shared] + "#" * (len(LONG) - shared)
    decision = router.select_worker(text=text, prompt_tokens=stated)
    assert decision.prompt_tokens == stated
    units = math.ceil(len(LONG) / 4)
    held = min(shared // (4 * BLOCK), (units - 1) // BLOCK) * BLOCK
    assert decision.matched_tokens == min(held * stated // units, max(0, stated - 1))
