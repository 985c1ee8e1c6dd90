"""The ground on which a chat matches, and how a router comes to it: by default, by the engine, and by reports."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from tests.models.ext_proc_client import in_loop, serve
from tests.models.metrics_pages import sglang_page, vllm_page
from tests.models.metrics_server import FakeEngine, eventually

from cachelb import RequestBodies, Router
from cachelb.sources import MetricsSource

PATH = "/v1/messages"
TEXT = "You are a careful agent. " * 200


def body(request: int) -> bytes:
    """Give a request of Claude Code: a billing line that always differs, before a text that never does."""
    system = [{"type": "text", "text": f"x-anthropic-billing-header: cc={request};"}, {"type": "text", "text": TEXT}]
    messages = [{"role": "user", "content": "Begin."}]
    return json.dumps({"model": "m", "max_tokens": 4, "system": system, "messages": messages}).encode()


def second(router: Router[str], **arguments: Any) -> Any:
    """Select for a second request beside a served first one."""
    router.select_worker(body=body(1), path=PATH, headers={}, **arguments).on_complete()
    return router.select_worker(body=body(2), path=PATH, headers={}, **arguments)


@contextmanager
def stated(engine: str | None) -> Iterator[Router[str]]:
    with Router(["a"], seed=1) as router:
        if engine is not None:
            router.load_sink.learn_worker("a", engine=engine)
        yield router


@contextmanager
def polled(engine: str | None) -> Iterator[Router[str]]:
    """Let a metrics page name the engine."""
    page = {"vllm": vllm_page(), "sglang": sglang_page(), None: b""}[engine]
    with FakeEngine(page) as worker, Router([worker.key], seed=1) as router:
        source = MetricsSource(interval_s=0.005, timeout_s=20.0)
        router.attach(source)
        eventually(lambda: any(each.polls for each in source.stats().workers.values()))
        eventually(lambda: router.stats().workers[0].engine == engine)
        yield router


@pytest.mark.parametrize("told", [stated, polled])
@pytest.mark.parametrize(("engine", "cuts"), [(None, True), ("vllm", True), ("sglang", False)])
def test_the_engine_sets_what_a_volatile_head_costs(
    told: Callable[[str | None], AbstractContextManager[Router[str]]], engine: str | None, cuts: bool
) -> None:
    with told(engine) as router:
        decision = second(router)
        assert (decision.matched_tokens > 500, decision.match_basis) == (cuts, "likely")
        told_of = decision.explain()
        assert (told_of.match_basis, f"attribution={'cut' if cuts else 'kept'}" in str(told_of.layout)) == (
            "likely",
            True,
        )
        decision.cancel()


@in_loop
async def test_the_endpoint_picker_matches_by_the_engine_of_the_page() -> None:
    for engine, cuts in (("vllm", True), ("sglang", False)):
        router = Router(["http://10.0.0.1:8000"], seed=1)
        router.load_sink.learn_worker("http://10.0.0.1:8000", engine=engine)
        async with serve(router, expose_headers=["x-cachelb-matched-tokens"]) as service:
            for request in (1, 2):
                stream = service.stream()
                await stream.request(body(request), {"content-type": "application/json"}, path=PATH)
                matched = (await stream.answer_headers())["x-cachelb-matched-tokens"]
            assert (int(matched) > 500) == cuts


def test_other_grounds_have_their_names() -> None:
    router = Router(["a"], seed=1)
    assert router.select_worker(tokens=range(64)).match_basis == "tokens"
    certain = second(Router(["a"], seed=1, bodies=RequestBodies(match="certain")))
    assert (certain.matched_tokens, certain.match_basis) == (0, "certain")


def test_reports_that_confirm_a_layout_are_a_ground_of_their_own() -> None:
    router = Router(["a"], seed=1)
    for request in range(40):
        decision = router.select_worker(body=body(request), path=PATH, headers={})
        decision.on_complete(cached_tokens=decision.matched_tokens, prompt_tokens=decision.prompt_tokens)
    decision = router.select_worker(body=body(99), path=PATH, headers={})
    assert (decision.matched_tokens > 500, decision.match_basis) == (True, "learned")
    assert router.stats().bodies.layout_switches == 0


def test_reports_of_cached_tokens_move_a_model_to_another_layout() -> None:
    """An engine that keeps the line finds nothing where the default expects nearly all."""
    router = Router(["a"], seed=1)
    for request in range(20):
        decision = router.select_worker(body=body(request), path=PATH, headers={})
        decision.on_complete(cached_tokens=0, prompt_tokens=decision.prompt_tokens, output_tokens=1)
    stats = router.stats().bodies
    assert (stats.layout_switches, stats.match_error_tokens["beyond"]) == (1, 0)
    assert stats.match_error_tokens["missing"] > 500
    decision = router.select_worker(body=body(99), path=PATH, headers={})
    assert decision.matched_tokens == 0
    assert "attribution=kept" in str(decision.explain().layout)
