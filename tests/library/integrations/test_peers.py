"""Hosts in Python name the peer to copy from to the worker, and none that a client names."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from tests.library.integrations.litellm_host import deployment, hosted
from tests.models.peer_engines import COPIED, FAULTS, PROMPT, Engines, connected, named_by, peer_engines, trap

from cachelb import Router
from cachelb.integrations.httpx import RoutingTransport
from cachelb.integrations.litellm import CachelbCallback

pytestmark = pytest.mark.filterwarnings("ignore")  # LiteLLM warns about its own models

Ask = Callable[..., tuple[int, str]]
"""Sends a request with fields and headers; returns the cached tokens of the answer, and its text."""


def read(page: Any) -> tuple[int, str]:
    """Return the cached tokens of an answer, and its text."""
    return page["usage"]["prompt_tokens_details"]["cached_tokens"], page["choices"][0]["text"]


@contextmanager
def by_httpx(workers: int, hash_seed: str) -> Iterator[tuple[Engines, Ask]]:
    """Give a client of httpx that routes."""
    with peer_engines(workers, hash_seed=hash_seed) as engines:

        async def ask(fields: dict[str, Any], headers: dict[str, str]) -> Any:
            async with httpx.AsyncClient(transport=RoutingTransport(engines.router), timeout=60) as client:
                body = {"prompt": PROMPT, **fields}
                return (await client.post("http://any/v1/completions", json=body, headers=headers)).json()

        yield engines, lambda fields, headers: read(asyncio.run(ask(fields, headers)))


@contextmanager
def by_litellm(workers: int, hash_seed: str) -> Iterator[tuple[Engines, Ask]]:
    """Give LiteLLM's router, whose deployments are the workers."""
    made: list[CachelbCallback] = []

    def make(**options: Any) -> Router[str]:
        made.append(CachelbCallback(**options))
        return made[0].router

    with peer_engines(workers, hash_seed=hash_seed, make=make) as engines:
        deployments = [deployment(each.url, each.url) for each in engines.workers]

        async def ask(fields: dict[str, Any], headers: dict[str, str]) -> Any:
            async with hosted(made[0], deployments, num_retries=1) as router:
                asked = {"model": "m", "prompt": PROMPT, "extra_headers": headers, **fields}
                return (await router.atext_completion(**asked)).model_dump()

        yield engines, lambda fields, headers: read(asyncio.run(ask(fields, headers)))


HOSTS = pytest.mark.parametrize("host", [by_httpx, by_litellm])


@HOSTS
@pytest.mark.parametrize("form", ["vllm", "llm-d"])
def test_the_worker_copies_from_the_source_of_the_decision(host: Any, form: str) -> None:
    with host(1, "0") as (engines, ask), trap() as (fields, headers, listener):
        source, (worker,) = engines.source, engines.workers
        at = source.url.removeprefix("http://")
        engines.join(form=form, **({} if form == "vllm" else {"addresses": {source.url: at, worker.url: "h:1"}}))
        if host is by_litellm:
            fields["extra_body"] = {"kv_hints": fields.pop("kv_hints")}
        assert ask(fields, headers) == (COPIED, engines.text)
        seen = worker.requests[-1]
        address = named_by(seen.body) or ("", 0)
        assert (":".join(map(str, address)) == source.peer_address) == (form == "vllm")
        assert seen.headers.get("x-kv-cache-source-host-port") == (None if form == "vllm" else at)
        assert seen.headers.get("x-cachelb-kv-source") == (source.url if host is by_httpx else None)
        # It has the blocks now: no source is named, and those of the client are taken off nevertheless.
        assert ask(fields, headers) == (COPIED, engines.text)
        seen = worker.requests[-1]
        assert "kv_hints" not in seen.body
        assert seen.body["kv_transfer_params"] == {"own": 1}
        assert not {name.lower() for name in seen.headers} & {name.lower() for name in headers}
        assert not connected(listener)


@HOSTS
@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_a_source_does_not_send_is_computed(host: Any, fault: str) -> None:
    with host(1, "01"[fault == "wrong seed"]) as (engines, ask):
        engines.join()
        copied = engines.strike(fault)
        assert ask({}, {}) == (copied, engines.text)


@HOSTS
def test_a_retry_has_a_source_of_its_own(host: Any) -> None:
    with host(2, "0") as (engines, ask):
        engines.join()
        picked = engines.router.select_worker(tokens=PROMPT, dry_run=True).worker
        first, second = sorted(engines.workers, key=lambda each: each.url != picked)
        first.fail("status", status=503, times=1)
        assert ask({}, {}) == (COPIED, engines.text)
        sent = [each.requests[-1].body["kv_transfer_params"]["remote_kv_source"] for each in (first, second)]
        assert sent[0].pop("kv_request_id") != sent[1].pop("kv_request_id")
        assert sent[0] == sent[1]


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [(b"[1]", "application/json", 400), (b"{", "application/json", 400), (b"x", "multipart/form-data", 415)],
)
def test_a_body_that_is_no_object_is_refused(body: bytes, kind: str, status: int) -> None:
    async def post(router: Router[str]) -> httpx.Response:
        async with httpx.AsyncClient(transport=RoutingTransport(router), timeout=60) as client:
            return await client.post("http://any/v1/completions", content=body, headers={"content-type": kind})

    with peer_engines() as engines:
        before = asyncio.run(post(engines.router)).status_code
        engines.join()
        answer = asyncio.run(post(engines.router))
        assert answer.status_code == (400 if status == 400 else before)
        assert ("request body" in json.dumps(answer.json())) == (status == 400)
        assert engines.router.stats().open_requests == 1
