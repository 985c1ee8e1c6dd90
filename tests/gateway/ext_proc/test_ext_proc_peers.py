"""The endpoint picker names the peer to copy from to the worker, and takes those off that clients name."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.http_client import complete
from tests.models.ext_proc_client import BUFFERED, DUPLEX, Picked, Service, in_loop, serve
from tests.models.peer_engines import COPIED, FAULTS, PROMPT, Engines, connected, named_by, peer_engines, trap

SOURCE = ["x-kv-cache-source-host-port", "x-kv-cache-source-p2p-port"]


async def ask(service: Service, body: bytes, headers: dict[str, str], modes: Any) -> tuple[Picked, list[str]]:
    """Send a request as the proxy does; return what the picker sets, and the headers that it takes off."""
    stream = service.stream(modes)
    await stream.send_headers(headers)
    if modes == BUFFERED:
        await stream.read()
    await stream.send_body(body)
    picked = await stream.read_picked(body=modes == DUPLEX)
    await stream.answer_headers(end=True)
    return picked, picked.removed


@pytest.mark.parametrize("modes", [DUPLEX, BUFFERED], ids=["duplex", "buffered"])
@pytest.mark.parametrize("form", ["vllm", "llm-d"])
@in_loop
async def test_the_worker_gets_the_source_of_the_decision(form: str, modes: Any) -> None:
    with peer_engines() as engines, trap() as (fields, headers, listener):
        source, (worker,) = engines.source, engines.workers
        host = source.url.removeprefix("http://")
        engines.join(form=form, **({} if form == "vllm" else {"addresses": {source.url: host, worker.url: "h:1"}}))
        async with serve(engines.router) as service:
            body = json.dumps({"prompt": PROMPT, **fields}).encode()
            picked, removed = await ask(service, body, headers, modes)
            assert picked.endpoints == [worker.url.removeprefix("http://")]
            sent = json.loads(picked.body)
            assert int(picked.headers.get("content-length", len(picked.body))) == len(picked.body)
            assert (picked.headers.get(SOURCE[0]), removed) == (
                (None, SOURCE) if form == "vllm" else (host, SOURCE[1:])
            )
            answer = await asyncio.to_thread(_complete, engines, sent, picked)
            assert (answer.cached_tokens, answer.json["choices"][0]["text"]) == (COPIED, engines.text)
            address = named_by(sent) or ("", 0)
            assert (":".join(map(str, address)) == source.peer_address) == (form == "vllm")
            assert sent["kv_transfer_params"].pop("own") == 1
            assert sent["kv_transfer_params"].keys() == ({"remote_kv_source"} if form == "vllm" else set())
        assert not connected(listener)


@pytest.mark.parametrize("fault", FAULTS)
@in_loop
async def test_whatever_a_source_does_not_send_is_computed(fault: str) -> None:
    with peer_engines(hash_seed="01"[fault == "wrong seed"]) as engines:
        engines.join()
        copied = engines.strike(fault)
        async with serve(engines.router) as service:
            picked, _ = await ask(service, json.dumps({"prompt": PROMPT}).encode(), {}, DUPLEX)
            answer = await asyncio.to_thread(_complete, engines, json.loads(picked.body), picked)
    assert (answer.cached_tokens, answer.json["choices"][0]["text"]) == (copied, engines.text)


def _complete(engines: Engines, sent: dict[str, Any], picked: Picked) -> Any:
    headers = {name: value for name, value in picked.headers.items() if name != "content-length"}
    return complete(engines.workers[0].url, **sent, headers=headers)


@in_loop
async def test_the_source_is_no_fallback_and_the_picked_model_stays() -> None:
    with peer_engines(2) as engines:
        engines.join()
        async with serve(engines.router, fallbacks=2, rewrite_model=True) as service:
            body = json.dumps({"prompt": PROMPT, "model": "a"}).encode()
            picked, _ = await ask(service, body, {"x-gateway-model-name-rewrite": "b"}, DUPLEX)
        assert set(picked.endpoints) == {each.url.removeprefix("http://") for each in engines.workers}
        sent = json.loads(picked.body)
        assert (sent["model"], named_by(sent) is None) == ("b", False)


@in_loop
async def test_a_form_passes_as_it_came() -> None:
    with peer_engines() as engines:
        engines.join()
        async with serve(engines.router) as service:
            picked, _ = await ask(service, b"--b", {"content-type": "multipart/form-data; boundary=b"}, DUPLEX)
    assert picked.body == b"--b"


@pytest.mark.parametrize(
    ("body", "options", "status"),
    [
        (b'{"prompt": NaN}', {}, 400),
        (b"{" + b" " * 100 + b"}", {"max_body_bytes": 50, "large_bodies": "pass"}, 413),
    ],
)
@in_loop
async def test_a_body_that_is_not_read_is_refused(body: bytes, options: dict[str, Any], status: int) -> None:
    with peer_engines() as engines:
        async with serve(engines.router, **options) as service:
            await ask(service, body, {}, DUPLEX)
            engines.join()
            stream = service.stream()
            await stream.send_headers()
            await stream.send_body(body)
            assert (await stream.read_refusal())[0] == status
