"""The native endpoint picker answers every sequence of messages as its model in Python does."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from typing import Any

import grpc
import pytest
from tests.models.ext_proc_messages import METHOD, ProcessingRequest, ProcessingResponse
from tests.models.ext_proc_sequences import URLS, sequence
from tests.models.own_policy import Own
from tests.models.python_picker.addresses import Addresses
from tests.models.python_picker.exchange import Exchange
from tests.models.python_picker.picking import Options, Picker

from cachelb import Router
from cachelb.integrations.ext_proc import EndpointPicker

ROUNDS = 40
LENGTH = 50


def options_of(round_: int) -> dict[str, Any]:
    return {
        "max_body_bytes": 2500,
        "large_bodies": ["pass", "refuse"][round_ % 2],
        "default_body_mode": ["duplex", "buffered", "streamed", "none"][round_ % 4],
        "rewrite_model": round_ % 3 == 0,
        "conformance": round_ % 5 == 0,
        "fallbacks": round_ % 4,
        "priorities": {"batch": -1, "chat": 3},
        "shed_inflight": 1 if round_ % 2 else None,
        "policy_timeout_s": 60.0,
        "expose_headers": ["x-cachelb-worker", "x-cachelb-reason", "x-cachelb-matched-tokens"],
    }


def router_of(round_: int) -> Router[str]:
    policies: list[Any] = ["adaptive", "cache-aware", "round-robin", "least-loaded", "prefix-affinity"]
    policies.append(Own(lambda fleet: len(fleet.keys) - 1))
    # Without a clock in Python, picks are made where messages are read; times must not count then.
    policy, clock = ("round-robin", None) if round_ % 4 == 3 else (policies[round_ % 6], lambda: 7.0)
    router = Router(URLS[:2], seed=round_, policy=policy, clock=clock)
    router.add_worker(URLS[2], dp_size=2 if round_ % 3 == 1 else 1)
    if round_ % 7 == 0:
        router.set_ready(URLS[1], False)
    return router


def plain(reply: Any) -> Any:
    """Leave out what the native picker adds, and how it writes JSON."""
    kind = reply.WhichOneof("response")
    if kind == "immediate_response":
        _drop(reply.immediate_response.headers, "x-llm-d-request-dropped-reason")
    if kind == "request_body" and (body := reply.request_body.response.body_mutation.body):
        _drop(reply.request_body.response.header_mutation, "content-length", str(len(body)))
        reply.request_body.response.body_mutation.body = json.dumps(json.loads(body), sort_keys=True).encode()
    return reply


def _drop(mutation: Any, name: str, value: str | None = None) -> None:
    kept = []
    for option in mutation.set_headers:
        if option.header.key == name:
            assert value is None or option.header.raw_value.decode() == value
        else:
            kept.append(type(option).FromString(option.SerializeToString()))
    del mutation.set_headers[:]
    mutation.set_headers.extend(kept)


def whole(replies: list[Any]) -> list[Any]:
    """Join the pieces of a JSON body that comes back, of which another model changes the length."""
    joined: list[Any] = []
    for reply in replies:
        mutation = reply.request_body.response.body_mutation
        before = joined[-1].request_body.response.body_mutation.streamed_response if joined else None
        if before is not None and before.body and mutation.streamed_response.body:
            before.body += mutation.streamed_response.body
            before.end_of_stream = mutation.streamed_response.end_of_stream
        else:
            joined.append(type(reply).FromString(reply.SerializeToString()))
    for reply in joined:
        streamed = reply.request_body.response.body_mutation.streamed_response
        with contextlib.suppress(ValueError):
            streamed.body = json.dumps(json.loads(streamed.body), sort_keys=True).encode()
    return joined


async def of_model(picker: Picker, messages: list[bytes]) -> list[Any]:
    exchange, replies = Exchange(picker), []
    for message in messages:
        replies += await exchange.receive(ProcessingRequest.FromString(message))
        if exchange.over:
            break
    exchange.close()
    return replies


async def of_native(method: Any, messages: list[bytes]) -> list[Any]:
    call = method()
    replies = []

    async def read() -> None:
        with contextlib.suppress(grpc.aio.AioRpcError):
            while (reply := await call.read()) is not grpc.aio.EOF:
                replies.append(reply)

    reading = asyncio.create_task(read())
    try:
        for message in messages:
            await call.write(ProcessingRequest.FromString(message))
        await call.done_writing()
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        pass
    await reading
    return replies


def shown(replies: list[Any]) -> list[str]:
    return [str(plain(reply)) for reply in whole(replies)]


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_replies_and_statistics_are_the_models(round_: int) -> None:
    async def main() -> None:
        routers = [router_of(round_) for _ in range(2)]
        options = options_of(round_)
        model = Picker(routers[0], Addresses(routers[0], None), Options(**{k: v for k, v in options.items() if k != "policy_timeout_s"}))
        async with EndpointPicker(routers[1], **options) as picker:
            port = await picker.start("127.0.0.1:0")
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                method = channel.stream_stream(
                    METHOD,
                    request_serializer=ProcessingRequest.SerializeToString,
                    response_deserializer=ProcessingResponse.FromString,
                )
                for index in range(LENGTH):
                    messages = sequence(round_ * LENGTH + index, errors=round_ % 4 != 3)
                    expected = shown(await of_model(model, messages))
                    found = shown(await of_native(method, messages))
                    assert found == expected, (index, [str(ProcessingRequest.FromString(m)) for m in messages])
                    while picker.open_streams:
                        await asyncio.sleep(0.001)
                    assert picker.counts == {k: v for k, v in model.counts.items() if v}, index
                    assert picker.held_bytes == 0
                    first, second = (dataclasses.asdict(router.stats()) for router in routers)
                    for each in (first, second):
                        each["select_seconds"] = sum(each["select_seconds"]["counts"])
                    for name in first:
                        assert first[name] == second[name], (index, name)
                    routers[1].validate()

    asyncio.run(main())
