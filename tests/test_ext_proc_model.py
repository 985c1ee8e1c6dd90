"""The native endpoint picker answers every sequence of messages as its model in Python does."""

from __future__ import annotations

import asyncio
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
    policies: list[Any] = ["adaptive", "cache-aware", "round-robin", "least-loaded", "session-affinity"]
    policies.append(Own(lambda fleet: len(fleet.inflight) - 1))
    router = Router(URLS[:2], seed=round_, policy=policies[round_ % 6], clock=(lambda: 7.0) if round_ % 2 else None)
    router.add_worker(URLS[2], dp_size=2 if round_ % 3 == 1 else 1)
    if round_ % 7 == 0:
        router.set_ready(URLS[1], False)
    return router


def plain(reply: Any) -> Any:
    """Leave out what the native picker adds, and spaces in JSON."""
    if reply.WhichOneof("response") == "immediate_response":
        mutation = reply.immediate_response.headers
        kept = [option for option in mutation.set_headers if option.header.key != "x-llm-d-request-dropped-reason"]
        copies = [type(option).FromString(option.SerializeToString()) for option in kept]
        del mutation.set_headers[:]
        mutation.set_headers.extend(copies)
    return reply


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
    return [str(plain(reply)) for reply in replies]


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
                    messages = sequence(round_ * LENGTH + index)
                    expected = shown(await of_model(model, messages))
                    found = shown(await of_native(method, messages))
                    assert found == expected, (index, [str(ProcessingRequest.FromString(m)) for m in messages])
                    while picker.open_streams:
                        await asyncio.sleep(0.001)
                    assert picker.counts == {k: v for k, v in model.counts.items() if v}, index
                    assert picker.held_bytes == 0
                    first, second = (dataclasses.asdict(router.stats()) for router in routers)
                    for name in first:
                        assert first[name] == second[name], (index, name)
                    routers[1].validate()

    asyncio.run(main())
