"""Identity: prompts of different models, adapters, salts and images never share a prefix, however they are given."""

from __future__ import annotations

from typing import Any

import pytest
from tests.routers import flat_router

import cachelb

TEXT = "The five boxing wizards jump quickly over the lazy dog. " * 40
PROMPTS: dict[str, dict[str, Any]] = {
    "tokens": {"tokens": range(640)},
    "text": {"text": TEXT},
    "messages": {"messages": [{"role": "user", "content": TEXT}]},
}
IDENTITIES: dict[str, dict[str, Any]] = {
    "model": {"model": "m"},
    "adapter": {"lora": "x"},
    "another adapter": {"lora": "y"},
    "salt": {"cache_salt": "x"},
    "adapter and salt": {"lora": "x", "cache_salt": "x"},
    "image": {"mm": [(5, 0, 10)]},
    "another image": {"mm": [(6, 0, 10)]},
}


def known(router: cachelb.Router[str], request: dict[str, Any]) -> int:
    return router.select_worker(**request, dry_run=True).best_matched_tokens


@pytest.mark.parametrize("options", [{}, {"policy": "cache-aware", "index": "radix"}], ids=["blocks", "tree"])
@pytest.mark.parametrize("kind", PROMPTS)
def test_prompts_of_different_identity_share_nothing(kind: str, options: dict[str, Any]) -> None:
    prompt = PROMPTS[kind]
    whose = {name: who for name, who in IDENTITIES.items() if kind == "tokens" or "mm" not in who}
    requests = [prompt, *(prompt | who for who in whose.values())]
    for first in requests:
        router = flat_router(["gpu0", "gpu1"], options, seed=1)
        router.select_worker(**first).on_complete()
        assert [other for other in requests if known(router, other)] == [first]


def test_an_image_changes_only_what_comes_after_it_begins() -> None:
    router = cachelb.Router(["gpu0", "gpu1"], seed=1)
    router.select_worker(tokens=range(640), mm=[(5, 320, 32)]).on_complete()
    assert known(router, {"tokens": range(640), "mm": [(6, 320, 32)]}) == 320
    assert known(router, {"tokens": range(640)}) == 320
    assert known(router, {"tokens": range(640), "mm": [(5, 320, 32)]}) == 624


def test_tenant_and_session_are_no_identity_of_a_prompt() -> None:
    router = cachelb.Router(["gpu0", "gpu1"], seed=1)
    router.select_worker(tokens=range(640), tenant="a", session="1").on_complete()
    assert known(router, {"tokens": range(640), "tenant": "b", "session": "2"}) == 624
