"""The request router for Ray Serve: what it reads from calls and options."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve.request_router import PendingRequest
from tests.library.integrations.ray_fakes import STORY, Client, fleet, make_router, serving

from cachelb.integrations.ray_serve.options import RAY_NAMES, build
from cachelb.integrations.ray_serve.prompts import read_request
from cachelb.requests import encode_body

# --- prompts ---


class Unreadable:
    """An argument that does not like to be looked at."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("no")


def with_arguments(client: Client, *args: Any, **kwargs: Any) -> PendingRequest:
    request = client.request(None)
    request.args, request.kwargs = list(args), kwargs
    return request


CHAT = [{"role": "system", "content": "Answer in verse. " * 20}, {"role": "user", "content": "What is a cache? " * 20}]


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((SimpleNamespace(prompt=STORY),), {}),
        (("GET", SimpleNamespace(prompt=STORY)), {}),
        (({"prompt": STORY},), {}),
        ((SimpleNamespace(prompt=[STORY]),), {}),
        ((SimpleNamespace(messages=CHAT),), {}),
        ((SimpleNamespace(messages=[SimpleNamespace(model_dump=lambda: CHAT[0])]),), {}),
        ((SimpleNamespace(messages=[{"content": STORY}]),), {}),
        ((SimpleNamespace(messages=[STORY]),), {}),
        ((SimpleNamespace(prompt=list(range(500))),), {}),
        ((object(),), {"request_token_ids": list(range(500))}),
    ],
)
async def test_prompt_is_found(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    router, client = serving(fleet())
    request = with_arguments(client, *args, **kwargs)
    first = await client.serve(request)
    client.finish(request, first)
    assert await client.serve(with_arguments(client, *args, **kwargs)) is first
    assert router.fleet.stats().decisions[("adaptive", "prefix")] == 1


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((Unreadable(),), {}),
        ((SimpleNamespace(prompt=[-1, -2]),), {}),
        ((SimpleNamespace(prompt=3.5),), {}),
        ((SimpleNamespace(messages=7),), {}),
        ((), {"request_token_ids": ["a", "b"]}),
    ],
    ids=["raises", "negative tokens", "a number", "messages that are a number", "token ids that are text"],
)
async def test_prompt_that_cannot_be_read_is_routed_by_load(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    router, client = serving(fleet())
    request = with_arguments(client, *args, **kwargs)
    replica = await client.serve(request)
    assert router.fleet.loads()[replica.key] == 1
    client.finish(request, replica)
    assert sum(router.fleet.loads().values()) == 0
    assert router.counters()["failed"] == 0


async def test_fields_that_are_none_count_as_absent() -> None:
    client = Client(make_router(fleet()))
    body = SimpleNamespace(prompt=STORY, max_completion_tokens=None, max_tokens=7, cache_salt=None, messages=None)
    fields = {"max_tokens": 7, "prompt": STORY}
    assert read_request(with_arguments(client, body)) == {"body": encode_body(fields), "path": "/v1/completions"}


async def test_salt_and_tools_of_a_request_count() -> None:
    router, client = serving(fleet())
    for fields in ({"cache_salt": "a"}, {"cache_salt": "b"}, {"tools": [{"function": {"name": "f"}}]}):
        request = with_arguments(client, {"messages": CHAT, **fields})
        client.finish(request, await client.serve(request))
    assert router.fleet.stats().funnel.selected_matched_tokens == 0
    tokens = with_arguments(client, {"messages": CHAT, "cache_salt": "a"}, request_token_ids=list(range(500)))
    assert json.loads(read_request(tokens)["body"]) == {"cache_salt": "a"}, "token ids stand for the messages"


async def test_session_of_the_request_reaches_the_policy() -> None:
    _, client = serving(fleet(), options={"policy": "session"})
    first = await client.serve(client.request(None, session_id="chat-7"))
    for _ in range(5):
        assert (await client.choose(client.request(None, session_id="chat-7")))[0] == [first]


# --- options and errors ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"polcy": "random"}, "polcy"),
        ({"shared": 1}, "shared must be True or False, got int"),
        ({"share_load": 1}, "share_load must be True or False, got int"),
        ({"share_load": True}, "share_load needs secret"),
        ({"share_load": True, "shared": True, "hash_seed": 7}, "leave shared out"),
        ({"share_interval_s": 0}, "share_interval_s must be above 0"),
        ({"unrouted_ttl_s": "soon"}, "unrouted_ttl_s must be a number, got str"),
        ({"policy": "cache-awar"}, "did you mean 'cache-aware'"),
    ],
)
async def test_wrong_option_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        make_router([], options=options)


@pytest.mark.parametrize("name", sorted(RAY_NAMES))
def test_any_option_of_rays_prefix_router_selects_prefix_affinity(name: str) -> None:
    values: dict[str, Any] = {"do_eviction": True, "eviction_threshold_chars": 500_000}
    router, _ = build({name: values.get(name, 1)})
    assert router.policy.name == "prefix-affinity"
    assert build({})[0].policy.name == "adaptive"


async def test_error_of_a_policy_leaves_the_choice_to_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = fleet()
    router, client = serving(replicas)

    def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(router._bookings, "choose", broken)
    assert await client.choose(client.request()) == [replicas]
    assert router.counters()["failed"] == 1
