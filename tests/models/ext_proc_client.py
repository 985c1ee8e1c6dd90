"""The proxy's side of an ext_proc stream, over a real gRPC channel."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import Any, NamedTuple

import grpc
from tests import waiting
from tests.loops import wanted, without
from tests.models.ext_proc_messages import METHOD, ProcessingRequest, ProcessingResponse

from cachelb import Router
from cachelb_gateway.ext_proc import EndpointPicker

DEADLINE_S = 120.0
until = waiting.until
URLS = [f"http://10.0.0.{number}:8000" for number in (1, 2, 3)]
DUPLEX = {"request": 4, "answer": 4}
BUFFERED = {"request": 2, "answer": 1}
DESTINATION = "x-gateway-destination-endpoint"


class Picked(NamedTuple):
    """The picker's answer to a request."""

    endpoints: list[str]
    headers: dict[str, str]
    body: bytes
    removed: list[str] = []  # noqa: RUF012 - of a tuple


class Stream:
    """One request, with messages in the order and shape of Envoy 1.39; `modes` None sends no modes."""

    def __init__(self, call: Any, modes: Mapping[str, int] | None) -> None:
        self.call = call
        self.modes = modes
        self._first = True

    async def send(self, message: Any) -> None:
        if self._first and self.modes is not None:
            message.protocol_config.SetInParent()
            message.protocol_config.request_body_mode = self.modes["request"]
            message.protocol_config.response_body_mode = self.modes["answer"]
        self._first = False
        async with asyncio.timeout(DEADLINE_S):  # wait_for of Python 3.11 may lose a cancellation
            await self.call.write(message)

    async def read(self) -> Any:
        """Read a reply, None at the end."""
        async with asyncio.timeout(DEADLINE_S):
            reply = await self.call.read()
        return None if reply is grpc.aio.EOF else reply

    # --- the request ---

    async def send_headers(
        self, headers: Mapping[str, str] | None = None, *, end: bool = False, subset: object = None, **pseudo: str
    ) -> None:
        message = ProcessingRequest()
        pseudo = {"method": "POST", "path": "/v1/completions", **pseudo}
        for name, value in [*((f":{name}", value) for name, value in pseudo.items()), *(headers or {}).items()]:
            message.request_headers.headers.headers.add(key=name, raw_value=value.encode())
        message.request_headers.end_of_stream = end
        if subset is not None:
            space = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
            space.update({f"{DESTINATION}-subset": subset})
        await self.send(message)

    async def send_body(self, body: bytes, *, end: bool = True) -> None:
        message = ProcessingRequest()
        message.request_body.body = body
        message.request_body.end_of_stream = end
        await self.send(message)

    async def read_picked(self, *, body: bool = True) -> Picked:
        """Read the pick, and in duplex mode the body that comes back with it."""
        reply = await self.read()
        assert reply is not None
        assert reply.WhichOneof("response") != "immediate_response", reply.immediate_response
        common = getattr(reply, reply.WhichOneof("response")).response
        headers = {option.header.key: option.header.raw_value.decode() for option in common.header_mutation.set_headers}
        assert {option.append_action for option in common.header_mutation.set_headers} == {2}
        assert common.clear_route_cache
        metadata = reply.dynamic_metadata.fields["envoy.lb"].struct_value.fields[DESTINATION].string_value
        assert headers[DESTINATION] == metadata
        received = bytes(common.body_mutation.body)
        if body:
            received = await self.read_body("request_body")
        return Picked(metadata.split(","), headers, received, list(common.header_mutation.remove_headers))

    async def read_body(self, part: str) -> bytes:
        """Read a body that comes back in pieces, to its end."""
        received: list[bytes] = []
        while True:
            reply = await self.read()
            streamed = getattr(reply, part).response.body_mutation.streamed_response
            assert len(streamed.body) <= 64 * 1024
            received.append(streamed.body)
            if streamed.end_of_stream:
                return b"".join(received)

    async def request(self, body: bytes, headers: Mapping[str, str] | None = None, **options: Any) -> Picked:
        """Send a whole request in duplex mode."""
        await self.send_headers(headers, **options)
        await self.send_body(body)
        return await self.read_picked()

    async def read_refusal(self) -> tuple[int, dict[str, str], bytes]:
        """Read the answer that the client gets at once, after which the stream ends."""
        reply = await self.read()
        assert reply is not None
        assert reply.WhichOneof("response") == "immediate_response"
        answer = reply.immediate_response
        headers = {option.header.key: option.header.raw_value.decode() for option in answer.headers.set_headers}
        assert await self.read() is None
        return answer.status.code, headers, answer.body

    # --- the answer ---

    async def answer_headers(
        self,
        status: int = 200,
        *,
        served: str | None = None,
        end: bool = False,
        details: str | None = None,
        kind: str = "application/json",
    ) -> dict[str, str]:
        """Send the headers of the answer; return those that the picker adds."""
        message = ProcessingRequest()
        for name, value in ((":status", str(status)), ("content-type", kind)):
            message.response_headers.headers.headers.add(key=name, raw_value=value.encode())
        message.response_headers.end_of_stream = end
        if served is not None:
            message.metadata_context.filter_metadata["envoy.lb"].update({f"{DESTINATION}-served": served})
        if details is not None:
            message.attributes["envoy.filters.http.ext_proc"].update({"response.code_details": details})
        await self.send(message)
        reply = await self.read()
        assert reply is not None
        options = reply.response_headers.response.header_mutation.set_headers
        return {option.header.key: option.header.raw_value.decode() for option in options}

    async def answer_body(self, body: bytes, *, end: bool = True) -> Any:
        """Send a part of the answer; return the reply to it."""
        message = ProcessingRequest()
        message.response_body.body = body
        message.response_body.end_of_stream = end
        await self.send(message)
        return await self.read()

    async def finish(self) -> None:
        """End the stream as Envoy does when the request is over."""
        await self.call.done_writing()
        assert await self.read() is None


class Proxy:
    """Opens streams."""

    def __init__(self, channel: Any) -> None:
        self._method = channel.stream_stream(
            METHOD,
            request_serializer=ProcessingRequest.SerializeToString,
            response_deserializer=ProcessingResponse.FromString,
        )

    def stream(self, modes: Mapping[str, int] | None = DUPLEX) -> Stream:
        return Stream(self._method(), modes)


class Service(NamedTuple):
    """A running picker and a proxy that is connected to it."""

    picker: EndpointPicker[str]
    proxy: Proxy
    channel: Any

    def stream(self, modes: Mapping[str, int] | None = DUPLEX) -> Stream:
        return self.proxy.stream(modes)

    async def settled(self) -> None:
        """Wait until the picker knows that every stream ended."""
        await until(lambda: self.picker.open_streams == 0)


@contextlib.asynccontextmanager
async def serve(router: Router[str], *, ready: bool = True, **options: Any) -> AsyncIterator[Service]:
    """Run a picker on loopback, and connect."""
    async with EndpointPicker(router, **{"body_timeout_s": DEADLINE_S} | options) as picker:
        port = await picker.start("127.0.0.1:0", ready=ready)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Service(picker, Proxy(channel), channel)
            await picker.stop(0)


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a test, and let gRPC end its thread, beside which a child of a fork would wait for ever."""
    asyncio.run(asyncio.wait_for(main, 4 * DEADLINE_S))
    gc.collect()


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an asynchronous test."""

    @functools.wraps(test)
    def run_it(**kwargs: Any) -> None:
        run(test(**kwargs))

    return run_it


def served(**options: Any) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Run a test with a picker of three workers: its `service`, and its `router` if the test takes it."""

    def decorate(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        @functools.wraps(test)
        def run_it(**kwargs: Any) -> None:
            async def main() -> None:
                router = Router(URLS, seed=1)
                async with serve(router, **options) as service:
                    await test(**kwargs, **wanted(test, {"router": router, "service": service}))

            run(main())

        run_it.__signature__ = without(test, {"router", "service"})  # type: ignore[attr-defined]  # read by pytest
        return run_it

    return decorate
