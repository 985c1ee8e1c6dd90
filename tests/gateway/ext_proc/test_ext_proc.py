"""The endpoint picker, asked by a real gRPC client as a proxy asks it: its picks, and its answers to the proxy."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from tests.models.ext_proc_client import (
    DEADLINE_S,
    DESTINATION,
    URLS,
    Service,
    in_loop,
    serve,
    served,
    until,
)
from tests.models.ext_proc_messages import ProcessingRequest, ProcessingResponse
from tests.models.own_policy import Own

from cachelb import RequestBodies, Router
from cachelb.policies.custom import FleetView, RequestView

A, B, C = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"
PROMPT = "The five boxing wizards jump quickly over the lazy dog. " * 20
NONE = {"request": 0, "answer": 0}
STREAMED = {"request": 1, "answer": 1}


def body_of(prompt: object = PROMPT, **fields: object) -> bytes:
    return json.dumps({"prompt": prompt, "max_tokens": 8, **fields}).encode()


async def refused(service: Service, headers: dict[str, str] | None = None, **options: Any) -> tuple[int, Any, Any]:
    """Send a request that gets no pick; return status, headers and body of the answer."""
    stream = service.stream()
    await stream.send_headers(headers, **options)
    await stream.send_body(body_of())
    status, received, body = await stream.read_refusal()
    return status, received, json.loads(body)["error"]


# --- the pick ---


@served()
async def test_headers_wait_for_the_body_and_header_and_metadata_are_equal(
    router: Router[str], service: Service
) -> None:
    stream = service.stream()
    await stream.send_headers()
    await stream.send_body(body_of()[:50], end=False)
    waiting = asyncio.ensure_future(stream.read())
    await stream.send_body(body_of()[50:])
    reply = await waiting
    assert reply.WhichOneof("response") == "request_headers"
    assert reply.request_headers.response.clear_route_cache
    header = reply.request_headers.response.header_mutation.set_headers[0]
    assert header.header.key == DESTINATION
    endpoints = header.header.raw_value.decode().split(",")
    assert sorted(endpoints) == [A, B, C]
    metadata = reply.dynamic_metadata.fields["envoy.lb"].struct_value.fields[DESTINATION].string_value
    assert metadata == ",".join(endpoints)
    assert await stream.read_body("request_body") == body_of()
    assert router.loads()[f"http://{endpoints[0]}"] == 1
    stream.call.cancel()
    await service.settled()


@served()
async def test_requests_that_begin_alike_go_to_one_worker(router: Router[str], service: Service) -> None:
    first = await service.stream().request(body_of())
    chat = json.dumps({"messages": [{"role": "user", "content": PROMPT}]}).encode()
    for body in (body_of(PROMPT + "and more"), body_of([*range(500)]), chat):
        again = [await service.stream().request(body) for _ in range(2)]
        assert again[0].endpoints[0] == again[1].endpoints[0]
    assert (await service.stream().request(body_of(PROMPT + "other"))).endpoints[0] == first.endpoints[0]
    assert router.stats().funnel.selected_matched_tokens == 0  # no request finished yet


@pytest.mark.parametrize("modes", [NONE, STREAMED], ids=["none", "streamed"])
@in_loop
async def test_body_that_comes_too_late_or_never_leaves_the_session_to_pick_by(modes: dict[str, int]) -> None:
    router = Router(URLS, policy="session", seed=1)
    async with serve(router) as service:
        seen = set()
        for _ in range(6):
            stream = service.stream(modes)
            await stream.send_headers({"x-session-id": "s1"})
            seen.add((await stream.read_picked(body=False)).endpoints[0])
            if modes is STREAMED:
                await stream.send_body(body_of())
                assert (await stream.read()).WhichOneof("response") == "request_body"
        assert len(seen) == 1
        assert service.picker.counts["body-not-sent"] == 6


@pytest.mark.parametrize(("mode", "waits"), [("duplex", True), ("buffered", False)])
@in_loop
async def test_proxy_that_does_not_tell_its_modes_is_taken_to_have_the_default_ones(mode: Any, waits: bool) -> None:
    async with serve(Router(URLS, seed=1), default_body_mode=mode) as service:
        stream = service.stream(None)
        await stream.send_headers()
        if not waits:
            assert (await stream.read()).WhichOneof("response") == "request_headers"
        await stream.send_body(body_of())
        assert (await stream.read_picked(body=waits)).body == (body_of() if waits else b"")


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"--boundary\r\nnot json", "syntax"),
        (b"[" * 100_000, "too-deep"),
        (b"[1, 2]", "not-object"),
        (b'{"messages": 7}', None),
        (b'{"prompt": [1, -2]}', "token-id"),
        (b'{"prompt": ["", 2], "user": "\\ud800"}', "surrogate"),
    ],
    ids=["multipart", "deep", "array", "no messages", "no token", "half a character"],
)
@served()
async def test_body_that_is_no_completion_request_is_left_to_the_worker(
    router: Router[str], service: Service, body: bytes, error: str | None
) -> None:
    assert (await service.stream().request(body)).body == body
    assert service.picker.counts == {"picked": 1}
    assert router.stats().bodies.errors == ({} if error is None else {error: 1})


# --- whom to choose from ---


@pytest.mark.parametrize("subset", [None, [], "", ["10.9.9.9:1"], [B]], ids=str)
@served()
async def test_nobody_eligible_is_503_and_names_no_worker(router: Router[str], service: Service, subset: Any) -> None:
    for url in URLS if subset is None else URLS[1:2]:
        router.set_ready(url, False)
    status, headers, error = await refused(service, subset=subset)
    reason = {"x-llm-d-request-dropped-reason": "rejected-no-endpoints"}
    assert (status, headers) == (503, {"content-type": "application/json", "retry-after": "1"} | reason)
    assert error["message"] == "no worker is available"
    assert service.picker.counts == {"no-worker": 1}
    assert router.stats().open_requests == 0


@in_loop
async def test_workers_without_an_ip_address_are_never_named(caplog: pytest.LogCaptureFixture) -> None:
    router = Router(["http://gpu0:8000", "unix:///run/gpu1.sock", URLS[0]], seed=1)
    async with serve(router) as service:
        for _ in range(4):
            assert (await service.stream().request(body_of())).endpoints == [A]
        router.add_worker(URLS[1])
        assert sorted((await service.stream().request(body_of())).endpoints) == [A, B]
    assert [record.args[0] for record in caplog.records] == ["http://gpu0:8000", "unix:///run/gpu1.sock"]  # type: ignore[index]


@pytest.mark.parametrize("late", ["http://gpu9:8000", URLS[1]])
@in_loop
async def test_worker_that_joins_during_a_pick_is_not_named_yet(late: str) -> None:
    def joined(fleet: FleetView) -> int:
        if len(router.keys()) == 1:
            router.add_worker(late)
        return len(fleet.keys) - 1

    router = Router(URLS[:1], policy=Own(joined), seed=1)
    async with serve(router, policy_timeout_s=DEADLINE_S) as service:
        assert (await service.stream().request(body_of())).endpoints == [A]
        assert (await service.stream().request(body_of())).endpoints == ([B, A] if late == URLS[1] else [A])
        assert router.stats().open_requests == 2


@in_loop
async def test_addresses_can_be_told_apart_from_keys() -> None:
    addresses = {"gpu0": A, "gpu1": "[fd00::1]:8000"}
    async with serve(Router(list(addresses), seed=1), address=addresses.__getitem__) as service:
        picked = await service.stream().request(body_of())
        assert sorted(picked.endpoints) == [A, "[fd00::1]:8000"]
        for subset in (["[fd00::1]:8000"], ["fd00::1"]):
            picked = await service.stream().request(body_of(), subset=subset)
            assert picked.endpoints == ["[fd00::1]:8000"]


# --- fallbacks and ranks ---


@pytest.mark.parametrize(("fallbacks", "named"), [(0, 1), (1, 2), (2, 3), (3, 4)])
@in_loop
async def test_fallbacks_are_named_in_the_order_in_which_the_router_would_pick_them(fallbacks: int, named: int) -> None:
    router = Router([f"http://10.0.0.{number}:8000" for number in range(1, 7)], policy="least-loaded", seed=1)
    held = [
        router.select_worker(among=[url], by_load=True)
        for number, url in enumerate(router.keys())
        for _ in range(number)
    ]
    async with serve(router, fallbacks=fallbacks) as service:
        picked = await service.stream().request(body_of())
    assert picked.endpoints == [f"10.0.0.{number}:8000" for number in range(1, 1 + named)]
    assert len(held) == 15


# --- other fields of the headers ---


class Watcher:
    """A policy that writes down what it is asked."""

    name = "watcher"
    needs = frozenset[str]()

    def __init__(self) -> None:
        self.seen: list[tuple[str | None, int, str | None]] = []

    def choose(self, request: RequestView, fleet: FleetView) -> int:
        if not request.dry_run:
            self.seen.append((request.tenant, request.priority, request.model))
        return 0


@in_loop
async def test_tenant_priority_and_model_come_from_the_headers() -> None:
    watcher = Watcher()
    headers = {"x-gateway-inference-fairness-id": "team-a", "x-gateway-model-name-rewrite": "llama-v2"}
    async with serve(Router(URLS, policy=watcher, seed=1), priorities={"batch": -5}) as service:
        headers["x-gateway-inference-objective"] = "batch"
        body = body_of(model="llama")
        assert (await service.stream().request(body, headers)).body == body
        await service.stream().request(body, {"x-gateway-inference-objective": "unknown"})
    assert watcher.seen == [("team-a", -5, "llama-v2"), (None, 0, "llama")]


@in_loop
async def test_sheddable_requests_get_429_while_the_worker_is_busy() -> None:
    router = Router(URLS[:1], seed=1)
    async with serve(router, priorities={"batch": -1}, shed_inflight=2) as service:
        batch = {"x-gateway-inference-objective": "batch"}
        for _ in range(2):
            await service.stream().request(body_of(), batch)
        status, headers, error = await refused(service, batch)
        assert (status, headers["retry-after"], error["type"]) == (429, "1", "shed")
        await service.stream().request(body_of())  # others are served
        assert router.loads() == {URLS[0]: 3}


# --- the wire ---


def test_messages_have_the_numbers_of_the_protocol() -> None:
    # By hand: field 4 (request_body) holds field 1 (body) "ab" and field 2 (end_of_stream) true.
    message = ProcessingRequest.FromString(b"\x22\x06\x0a\x02ab\x10\x01")
    body = message.request_body
    assert (message.WhichOneof("request"), body.body, body.end_of_stream) == ("request_body", b"ab", True)
    # Field 2 (request_headers), 1 (headers), 1 (headers): key 1 and raw_value 3. Field 11: body modes 4 and 1.
    headers = ProcessingRequest.FromString(b"\x12\x0a\x0a\x08\x0a\x06\x0a\x01a\x1a\x01b\x5a\x04\x08\x04\x10\x01")
    assert headers.request_headers.headers.headers[0].raw_value == b"b"
    assert (headers.protocol_config.request_body_mode, headers.protocol_config.response_body_mode) == (4, 1)
    reply = ProcessingResponse()
    reply.immediate_response.status.code = 503
    assert reply.SerializeToString() == b"\x3a\x05\x0a\x03\x08\xf7\x03"
    reply = ProcessingResponse()
    reply.response_body.response.body_mutation.streamed_response.end_of_stream = True
    assert reply.SerializeToString() == b"\x22\x08\x0a\x06\x1a\x04\x1a\x02\x10\x01"
    unknown = b"\xca\x3e\x02hi"  # field 1001, which is carried along
    message = ProcessingRequest.FromString(b"\x22\x04\x0a\x02ab" + unknown)
    assert message.request_body.body == b"ab"
    assert message.SerializeToString() == b"\x22\x04\x0a\x02ab" + unknown


# --- the interpreter ---


@in_loop
async def test_policy_in_python_picks_and_one_that_hangs_is_not_waited_for() -> None:
    held, hung = threading.Event(), threading.Event()

    def last(fleet: FleetView) -> int:
        if hung.is_set():
            held.wait(DEADLINE_S)
        return len(fleet.keys) - 1

    router = Router(URLS, policy=Own(last), seed=1)
    async with serve(router, policy_timeout_s=DEADLINE_S) as service:
        assert (await service.stream().request(body_of())).endpoints == [C, B, A]
    hung.set()
    async with serve(router, policy_timeout_s=0.05) as service:
        picks = [(await service.stream().request(body_of())).endpoints for _ in range(3)]
        assert sorted(pick[0] for pick in picks) == [A, B, C]  # of the least load
        assert service.picker.counts == {"picked": 3, "policy-timeout": 3}
        held.set()
        hung.clear()
        await until(lambda: router.stats().open_requests == 3)  # what came too late is given back


@in_loop
async def test_renderer_in_python_gives_the_tokens_to_match() -> None:
    bodies = RequestBodies(renderer=lambda body, _path: list(json.loads(body)["prompt"].encode()))
    router = Router(URLS, bodies=bodies, seed=1, block_size=16)
    async with serve(router, expose_headers=["x-cachelb-matched-tokens"], policy_timeout_s=DEADLINE_S) as service:
        first = await service.stream().request(body_of("a" * 64))
        stream = service.stream()
        assert (await stream.request(body_of("a" * 64 + "b" * 8))).endpoints[0] == first.endpoints[0]
        assert (await stream.answer_headers())["x-cachelb-matched-tokens"] == "64"
        # Served elsewhere, the prompt is rendered again: its tokens are there from now on.
        fallback = service.stream()
        picked = await fallback.request(body_of("c" * 64))
        await fallback.answer_headers(served=picked.endpoints[1])
        matched = [
            router.select_worker(tokens=list(b"c" * 80), among=[f"http://{endpoint}"], dry_run=True).matched_tokens
            for endpoint in picked.endpoints
        ]
        assert matched == [0, 64, 0]
